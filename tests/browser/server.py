"""A Jupyter server of our own on the loopback address, with throw-away settings."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

FOLDERS = {
    "JUPYTER_CONFIG_DIR": "config",
    "JUPYTER_DATA_DIR": "data",
    "JUPYTER_RUNTIME_DIR": "runtime",
    "IPYTHONDIR": "ipython",
    "JUPYTERLAB_SETTINGS_DIR": "settings",
    "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
}


def free_port() -> int:
    """A port that nothing listens on right now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class JupyterServer:
    """JupyterLab serving ``root``; its settings live and die in ``home``."""

    def __init__(self, root: Path, home: Path, theme: str = "JupyterLab Light") -> None:
        self.root, self.home = root, home
        self.token = secrets.token_hex(8)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        for name in FOLDERS.values():
            (home / name).mkdir(parents=True, exist_ok=True)
        root.mkdir(parents=True, exist_ok=True)
        self._set("notification", {"fetchNews": "false", "checkForUpdates": False})
        self._set("themes", {"theme": theme})

    def _set(self, plugin: str, values: dict[str, Any]) -> None:
        folder = self.home / "settings" / "@jupyterlab" / "apputils-extension"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{plugin}.jupyterlab-settings").write_text(json.dumps(values))

    def _command(self) -> list[str]:
        options = {
            "ServerApp.port": self.port,
            "ServerApp.ip": "127.0.0.1",
            "ServerApp.port_retries": 0,
            "IdentityProvider.token": self.token,
            "ServerApp.open_browser": False,
            "ServerApp.allow_root": True,
            "ServerApp.root_dir": self.root,
            "LabApp.expose_app_in_browser": True,
            "JupyterNotebookApp.expose_app_in_browser": True,
            "LabApp.news_url": "",
            "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        }
        return [
            sys.executable,
            "-m",
            "jupyterlab",
            *(f"--{key}={value}" for key, value in options.items()),
        ]

    def start(self, timeout_s: float = 60) -> JupyterServer:
        """Start the server and wait until it answers."""
        env = {name: v for name, v in os.environ.items() if not name.startswith("JUPYTER")}
        env.update({name: str(self.home / folder) for name, folder in FOLDERS.items()})
        self._log = (self.home / "server.log").open("wb")
        self.process = subprocess.Popen(
            self._command(),
            env=env,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError((self.home / "server.log").read_text()[-4000:])
            try:
                self.api("/api/status", timeout_s=2)
                return self
            except OSError:
                time.sleep(0.1)
        raise TimeoutError("the Jupyter server did not answer")

    def api(self, path: str, method: str = "GET", timeout_s: float = 20) -> Any:
        """Ask the server's REST interface."""
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(self.url + path, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:
            data = reply.read()
        return json.loads(data) if data else None

    def shut_down_kernel_of(self, name: str) -> None:
        """End the kernel of one notebook."""
        for session in self.api("/api/sessions"):
            if session["path"] == name:
                self.api(f"/api/sessions/{session['id']}", "DELETE")

    def stop(self) -> None:
        """End all kernels, then the server."""
        with contextlib.suppress(OSError):
            for kernel in self.api("/api/kernels"):
                self.api(f"/api/kernels/{kernel['id']}", "DELETE")
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(5)
        self._log.close()

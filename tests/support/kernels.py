"""A real Jupyter kernel under a test's hand: run cells, interrupt, kill, see every message."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
FORKSERVER = "notebook_accel.launch.forkserver"
ROOT = Path(__file__).resolve().parents[2]


# Another interpreter for all kernels: the same tests then try an older set of packages.
PYTHON_VARIABLE = "NOTEBOOK_ACCEL_TEST_KERNEL_PYTHON"


def _manager(python: str | None) -> KernelManager:
    if python is None:
        return KernelManager()
    folder = Path(python).parents[1] / "kernels"
    (folder / "other").mkdir(parents=True, exist_ok=True)
    argv = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "other", "language": "python"}
    (folder / "other" / "kernel.json").write_text(json.dumps(spec))
    specs = KernelSpecManager(kernel_dirs=[str(folder)])
    return KernelManager(kernel_name="other", kernel_spec_manager=specs)


@dataclass
class Reply:
    """What one cell said."""

    messages: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def out(self) -> str:
        """All stdout text."""
        return self._stream("stdout")

    @property
    def err(self) -> str:
        """All stderr text."""
        return self._stream("stderr")

    def _stream(self, name: str) -> str:
        return "".join(c["text"] for t, c in self.messages if t == "stream" and c["name"] == name)

    @property
    def error(self) -> str:
        """The name of the exception the cell ended with, or ""."""
        return next((c["ename"] for t, c in self.messages if t == "error"), "")

    @property
    def traceback(self) -> str:
        """What the cell shows of its exception, without colors."""
        lines = [c["traceback"] for t, c in self.messages if t == "error"]
        return _ANSI.sub("", "\n".join(lines[0])) if lines else ""

    @property
    def displays(self) -> list[dict[str, Any]]:
        """The data of every display, newest last."""
        kinds = ("display_data", "update_display_data")
        return [c["data"] for t, c in self.messages if t in kinds]

    def kinds(self) -> list[str]:
        """The message types in order."""
        return [t for t, _ in self.messages]


class Kernel:
    """One kernel process; use as a context manager."""

    def __init__(self, env: dict[str, str] | None = None, cwd: Path | None = None) -> None:
        self._manager = _manager(os.environ.get(PYTHON_VARIABLE))
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self._manager.start_kernel(
            env={**os.environ, "PYTHONPATH": path, **(env or {})},
            cwd=str(cwd or ROOT),
            extra_arguments=["--HistoryManager.enabled=False"],
        )
        self._connect()

    def _connect(self) -> None:
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=60)
        self.execution_count = 0
        self.pid = int(self.run("import os; print(os.getpid())").out)

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown(now=True)

    def start(self, code: str, stop_on_error: bool = False) -> str:
        """Start a cell; give its message id. ``stop_on_error`` drops cells queued behind it."""
        return self._client.execute(code, store_history=True, stop_on_error=stop_on_error)

    def finish(self, message_id: str, timeout_s: float = 60.0, after_s: float = 0.0) -> Reply:
        """Collect a cell's messages until it is idle (and ``after_s`` longer)."""
        reply = Reply()
        began = time.monotonic()
        deadline = began + timeout_s
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"the cell is not done after {timeout_s} s: {reply.messages}")
            try:
                message = self._client.get_iopub_msg(timeout=left_s)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != message_id:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "execute_input":
                self.execution_count = content["execution_count"]
            if kind == "status" and content["execution_state"] == "idle":
                break
            if kind not in ("status", "execute_input"):
                reply.messages.append((kind, content))
        reply.took_s = time.monotonic() - began
        self._await_reply(message_id, deadline)
        end = time.monotonic() + after_s
        while time.monotonic() < end:
            try:
                message = self._client.get_iopub_msg(timeout=0.1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") == message_id:
                reply.messages.append((message["msg_type"], message["content"]))
        return reply

    def _await_reply(self, message_id: str, deadline: float) -> None:
        """Take the cell's reply, as a notebook does before it sends the next cell.

        ipykernel 7.0 to 7.3 never hears of a cell that comes while it sends the reply to another.
        """
        while True:
            try:
                message = self._client.get_shell_msg(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise TimeoutError("the cell is idle, but the kernel did not reply") from None
            if message["parent_header"].get("msg_id") == message_id:
                return

    def run(self, code: str, timeout_s: float = 60.0, after_s: float = 0.0) -> Reply:
        """Run a cell to its end."""
        return self.finish(self.start(code), timeout_s, after_s)

    def wait_for_output(self, message_id: str, *texts: str, timeout_s: float = 30.0) -> None:
        """Wait until a cell has printed all ``texts``, also one that has returned."""
        seen = ""
        deadline = time.monotonic() + timeout_s
        while not all(text in seen for text in texts):
            try:
                message = self._client.get_iopub_msg(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(f"{texts} did not come within {timeout_s} s: {seen}") from None
            if message["parent_header"].get("msg_id") == message_id:
                seen += message["content"].get("text", "")
                seen += "\n".join(message["content"].get("traceback", []))

    def send_comm(self, comm_id: str, data: dict[str, Any]) -> None:
        """Send what a widget in the page sends: a click, say."""
        content = {"comm_id": comm_id, "data": data}
        self._client.shell_channel.send(self._client.session.msg("comm_msg", content))

    def interrupt(self) -> None:
        """Do what the interrupt button does: SIGINT to the kernel's whole process group."""
        self._manager.interrupt_kernel()

    def restart(self) -> None:
        """Restart the kernel; a new process answers afterwards."""
        self._client.stop_channels()
        self._manager.restart_kernel(now=False)
        self._connect()

    def kill(self) -> None:
        """SIGKILL the kernel process alone, as the out-of-memory killer would."""
        os.kill(self.pid, signal.SIGKILL)

    def shutdown(self, now: bool = False) -> None:
        """Shut the kernel down."""
        self._client.stop_channels()
        if self._manager.has_kernel:
            self._manager.shutdown_kernel(now=now)
        self._manager.cleanup_resources()


def forkservers(pid: int) -> set[int]:
    """Give the pids of the forkservers of kernel ``pid``; their workers look the same otherwise."""
    found = set()
    for process in psutil.Process(pid).children():
        try:
            if any(FORKSERVER in word for word in process.cmdline()):
                found.add(process.pid)
        except psutil.Error:  # it has just ended
            continue
    return found


def family(pid: int) -> set[int]:
    """Give the pids of all living descendants of ``pid``."""
    found = set()
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                found.add(process.pid)
        except psutil.NoSuchProcess:
            continue
    return found


def alive(pids: set[int]) -> set[int]:
    """Give those of ``pids`` that still run."""
    found = set()
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.add(pid)
        except psutil.NoSuchProcess:
            continue
    return found


def wait_gone(pids: set[int], timeout_s: float = 5.0) -> set[int]:
    """Wait until none of ``pids`` runs; give those that still do after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while (left := alive(pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left

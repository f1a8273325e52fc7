"""Binder: its files build an environment in which the quickstart runs, in the memory it gives."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import venv
from pathlib import Path

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "notebooks" / "1_beginner" / "01_quickstart.ipynb"
LIMIT_BYTES = 2 * 2**30  # of a machine of Binder's; its server and page need about 200 MB of them
SERVER_BYTES = 200 * 2**20


class Peak:
    """The most memory that this process's descendants had together, pages they share once."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        me = psutil.Process()
        while not self._done.wait(0.1):
            total = 0
            for process in me.children(recursive=True):
                try:
                    total += process.memory_full_info().pss
                except psutil.Error:
                    continue
            self.num_bytes = max(self.num_bytes, total)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells shared pages from own ones")
def test_the_quickstart_needs_less_memory_than_binder_gives() -> None:
    notebook = nbformat.read(QUICKSTART, as_version=4)
    where = {"metadata": {"path": str(QUICKSTART.parent)}}
    with Peak() as peak:
        NotebookClient(notebook, timeout=120, kernel_name="python3", resources=where).execute()
    assert 100e6 < peak.num_bytes < LIMIT_BYTES - SERVER_BYTES
    print(f"peak: {peak.num_bytes / 1e6:.0f} MB")


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_requirements_and_post_build_make_an_environment_that_launches(tmp_path: Path) -> None:
    wanted = (ROOT / "binder" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    # The constraints choose the CPU build here, so that its own index need not be reached.
    kept = [line for line in wanted if not line.startswith("--extra-index-url")]
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("\n".join(kept))
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=True)
    env = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    env.pop("PYTHONPATH", None)
    for command in (
        [folder / "bin" / "pip", "install", "-q", "-c", "constraints.txt", "-r", requirements],
        [ROOT / "binder" / "postBuild"],
        [folder / "bin" / "jupyter", "lab", "--version"],
    ):
        done = subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stdout + done.stderr

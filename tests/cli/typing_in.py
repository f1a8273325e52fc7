"""A command typed by a person: run in a process of its own, with what it printed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START = "import sys; from notebook_accel.cli.main import main; code = main(); "


def typed(
    *words: str,
    then: str = "sys.exit(code)",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,  # all of it
    said: str | None = None,
    timeout_s: float = 100,
) -> subprocess.CompletedProcess[str]:
    """Run ``notebook-accel WORDS``; ``said`` is what its input holds."""
    return subprocess.run(
        [sys.executable, "-c", START + then, *words],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=cwd,
        env=surroundings() if env is None else env,
        input=said,
    )


def surroundings(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Give the environment of a typed command, in which this checkout is found from anywhere."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, **(env or {})}


def kill_myself() -> None:
    """Die as a process does that memory ran out for."""
    os.kill(os.getpid(), signal.SIGKILL)

"""A process that has imported torch and forks the ranks of tests: their imports are paid once.

    tests ── {"script", "outputs", "envs"} ──▶ nursery      JSON, one line for the ranks of a test
    tests ◀── exit codes ────────────────────── nursery

A rank ends as the script that it runs: as ``__main__``, at the end of this process's own.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_nursery: subprocess.Popen[str] | None = None


def raised(script: Path, outputs: list[tuple[str, str]], envs: list[dict[str, str]]) -> list[int]:
    """Run ``script`` once for each of ``envs``; give the exit codes when all have ended."""
    nursery = _running()
    assert nursery.stdin is not None and nursery.stdout is not None
    nursery.stdin.write(json.dumps([str(script), outputs, envs]) + "\n")
    nursery.stdin.flush()
    line = nursery.stdout.readline()
    if not line:
        raise TimeoutError(f"the ranks of {script} were killed (code {nursery.wait(20)})")
    codes: list[int] = json.loads(line)
    return codes


def close() -> None:
    """Let it end: there are no more ranks to come."""
    if _nursery is not None:
        _nursery.communicate()


def kill() -> None:
    """End it now, and whom it still runs: the next ranks get another one."""
    if _nursery is not None:
        os.killpg(_nursery.pid, signal.SIGKILL)


def _running() -> subprocess.Popen[str]:
    global _nursery
    if _nursery is None or _nursery.poll() is not None:
        _nursery = subprocess.Popen(
            [sys.executable, __file__],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        atexit.register(close)
    return _nursery


def serve() -> str:
    """Fork until there is nothing more to do; in a rank, give the script that it is to run."""
    from notebook_accel.launch.start import WARM

    for name in WARM:
        importlib.import_module(name)
    while line := sys.stdin.readline():
        script, outputs, envs = json.loads(line)
        pids = []
        for (out, err), env in zip(outputs, envs, strict=True):
            pids.append(os.fork())
            if not pids[-1]:
                _become(script, out, err, env)
                return str(script)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print(json.dumps(codes), flush=True)
    return ""


def _become(script: str, out: str, err: str, env: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(env)
    for name, target, flags in (
        (os.devnull, 0, os.O_RDONLY),
        (out, 1, os.O_WRONLY | os.O_CREAT),
        (err, 2, os.O_WRONLY | os.O_CREAT),
    ):
        fd = os.open(name, flags)
        os.dup2(fd, target)
        os.close(fd)
    sys.argv[:] = [script]
    sys.path[0] = os.path.dirname(script)


if __name__ == "__main__" and (here := serve()):
    runpy.run_path(here, run_name="__main__")

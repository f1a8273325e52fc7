"""Real ranks for tests of the worker side: n processes over gloo, as torchrun would start them."""

from __future__ import annotations

import inspect
import json
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 90.0


def run_ranks(body: Callable[..., Any] | str, n: int, timeout_s: float = TIMEOUT_S) -> list[Any]:
    """Run ``body`` on ``n`` ranks; give what each rank's ``body`` returned (as JSON), in order.

    ``body`` is a self-contained function (it imports what it needs), or the source of a script
    that defines ``main``.
    """
    results = []
    for code, out, err, value in start_ranks(body, n, timeout_s):
        assert code == 0, f"a rank ended with {code}\n{out}\n{err}"
        results.append(value)
    return results


def start_ranks(
    body: Callable[..., Any] | str, n: int, timeout_s: float = TIMEOUT_S
) -> list[tuple[int, str, str, Any]]:
    """Run ``body`` on ``n`` ranks; give each rank's exit code, stdout, stderr and value."""
    if not isinstance(body, str):
        body = textwrap.dedent(inspect.getsource(body)) + f"\nmain = {body.__name__}\n"
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "rank_script.py"
        script.write_text(f"{body}\n{_ENDING}")
        port = _free_port()
        processes = []
        try:
            for rank in range(n):
                env = {
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "OMP_NUM_THREADS": "1",
                    "ACCELERATE_USE_CPU": "1",
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(n),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "RESULT_FILE": str(Path(folder) / f"result{rank}.json"),
                }
                processes.append(
                    subprocess.Popen(
                        [sys.executable, str(script)],
                        env=env,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        text=True,
                    )
                )
            said = [process.communicate(timeout=timeout_s) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return [
            (process.returncode, out, err, _read(Path(folder) / f"result{rank}.json"))
            for rank, (process, (out, err)) in enumerate(zip(processes, said, strict=True))
        ]


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_ENDING = """
if __name__ == "__main__":
    import json, os
    value = main()
    with open(os.environ["RESULT_FILE"], "w") as file:
        json.dump(value, file)
"""

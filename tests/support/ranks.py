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
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support import nursery

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 90.0


def run_ranks(
    body: Callable[..., Any] | str, n: int, timeout_s: float = TIMEOUT_S, fresh: bool = False
) -> list[Any]:
    """Run ``body`` on ``n`` ranks; give what each rank's ``body`` returned (as JSON), in order.

    ``fresh`` ranks import torch themselves, which takes seconds: where that matters.

    ``body`` is a self-contained function (it imports what it needs), or the source of a script
    that defines ``main``.
    """
    results = []
    for code, out, err, value in start_ranks(body, n, timeout_s, fresh=fresh):
        assert code == 0, f"a rank ended with {code}\n{out}\n{err}"
        results.append(value)
    return results


def start_ranks(
    body: Callable[..., Any] | str, n: int, timeout_s: float = TIMEOUT_S, fresh: bool = True
) -> list[tuple[int, str, str, Any]]:
    """Run ``body`` on ``n`` ranks; give each rank's exit code, stdout, stderr and value."""
    if not isinstance(body, str):
        body = textwrap.dedent(inspect.getsource(body)) + f"\nmain = {body.__name__}\n"
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "rank_script.py"
        script.write_text(f"{body}\n{_ENDING}")
        envs = _environments(n, folder)
        ends = _fresh(script, envs, timeout_s) if fresh else _forked(script, envs, timeout_s)
        return [
            (*end, _read(Path(env["RESULT_FILE"]))) for end, env in zip(ends, envs, strict=True)
        ]


def _environments(n: int, folder: str) -> list[dict[str, str]]:
    port = _free_port()
    return [
        {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "ACCELERATE_USE_CPU": "1",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(n),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RESULT_FILE": f"{folder}/result{rank}.json",
        }
        for rank in range(n)
    ]


def _fresh(
    script: Path, envs: list[dict[str, str]], timeout_s: float
) -> list[tuple[int, str, str]]:
    words = [sys.executable, str(script)]
    pipe = subprocess.PIPE
    processes = []
    try:
        for env in envs:
            processes.append(subprocess.Popen(words, env=env, stdout=pipe, stderr=pipe, text=True))
        said = [process.communicate(timeout=timeout_s) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [(process.returncode, *texts) for process, texts in zip(processes, said, strict=True)]


def _forked(
    script: Path, envs: list[dict[str, str]], timeout_s: float
) -> list[tuple[int, str, str]]:
    files = [script.parent / f"{what}{n}" for n in range(len(envs)) for what in ("out", "err")]
    outputs = [(str(out), str(err)) for out, err in zip(files[::2], files[1::2], strict=True)]
    timer = threading.Timer(timeout_s, nursery.kill)
    timer.start()
    try:
        codes = nursery.raised(script, outputs, envs)
    finally:
        timer.cancel()
        timer.join()
    texts = [file.read_text(errors="replace") for file in files]
    return list(zip(codes, texts[::2], texts[1::2], strict=True))


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

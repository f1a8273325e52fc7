"""Two machines on one: a launch in this process, and a joined command beside it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from notebook_accel import notebook_launcher

ROOT = Path(__file__).parents[2]
WAIT_S = 90.0


class Joiner:
    """One ``notebook-accel join``, with what it said; ``inside`` is a command that runs it."""

    def __init__(
        self, address: str, token: str, *options: str, inside: tuple[str, ...] = ()
    ) -> None:
        self.process = subprocess.Popen(
            [*inside, sys.executable, "-m", "notebook_accel", "join", address, *options],
            env={**os.environ, "PYTHONPATH": str(ROOT), "NOTEBOOK_ACCEL_TOKEN": token},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __enter__(self) -> Joiner:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self) -> tuple[int, str]:
        """Wait for its end; give the exit code and the output."""
        out, _ = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, out

    def family(self) -> set[int]:
        """The processes that it has started."""
        return {one.pid for one in psutil.Process(self.process.pid).children(recursive=True)}


class Waiting:
    """A launch that waits for other machines."""

    def __init__(self, run: Any, said: Said) -> None:
        self.run = run
        self.said = said
        self.address = said.match(r"notebook-accel join (\S+)").group(1)
        said.match(r"token: (\S+)")
        self.tokens = re.findall(r"token: (\S+)", said.text)
        self.joined: list[Joiner] = []

    def join(self, *options: str) -> Joiner:
        """Join it as one should."""
        self.joined.append(Joiner(self.address, self.tokens.pop(0), *options))
        return self.joined[-1]


class Said:
    """What this process has written so far."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture
        self.text = ""

    def match(self, pattern: str) -> re.Match[str]:
        """Wait until it has written what ``pattern`` finds."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            self.read()
            if found := re.search(pattern, self.text):
                return found
            time.sleep(0.05)
        raise TimeoutError(f"{pattern!r} was not written: {self.text}")

    def read(self) -> str:
        """Give all of it."""
        self.text += "".join(self._capture.readouterr())
        return self.text


@contextmanager
def joinable(
    main: Callable[..., Any],
    capture: pytest.CaptureFixture[str],
    args: tuple[Any, ...] = (),
    num_processes: int = 2,
    num_nodes: int = 2,
    **how: Any,
) -> Iterator[Waiting]:
    """Launch ``main`` for machines to join; what is left of it is ended."""
    run = notebook_launcher(
        main, args, num_processes, num_nodes=num_nodes, join=True, device="cpu", block=False, **how
    )
    waiting = None
    try:
        waiting = Waiting(run, Said(capture))
        yield waiting
    finally:
        for joiner in waiting.joined if waiting is not None else []:
            joiner.__exit__()
        if not run.done:
            run.kill()
            run._done.wait(WAIT_S)
        run._thread.join(WAIT_S)

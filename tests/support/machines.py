"""Two machines on one: a launch in this process, and a joined command beside it."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import psutil

from notebook_accel import notebook_launcher

ROOT = Path(__file__).parents[2]
WAIT_S = 90.0


def wait_for(read: Callable[[], str], pattern: str) -> re.Match[str]:
    """Wait until what ``read`` gives has what ``pattern`` finds."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if found := re.search(pattern, read()):
            return found
        time.sleep(0.05)
    raise TimeoutError(f"{pattern!r} was not written: {read()}")


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


class Script:
    """A script that launches, in a process of its own; ``inside`` is a command that runs it."""

    def __init__(self, path: Path, *words: str, inside: tuple[str, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [*inside, sys.executable, "-u", str(path), *words],
            env={**os.environ, "PYTHONPATH": str(ROOT), "NOTEBOOK_ACCEL_UI": "off"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.said = ""

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.process.poll() is None:
            for one in psutil.Process(self.process.pid).children(recursive=True):
                one.kill()
        self.process.kill()
        self.process.communicate()

    def match(self, pattern: str) -> re.Match[str]:
        """Wait until it has written what ``pattern`` finds."""
        return wait_for(self._read, pattern)

    def _read(self) -> str:
        assert self.process.stdout is not None
        self.said += (self.process.stdout.read() or b"").decode()
        return self.said

    def joiner(self, *options: str, inside: tuple[str, ...] = ()) -> Joiner:
        """Join it as one should."""
        address = self.match(r"notebook-accel join (\S+)").group(1)
        token = self.match(r"token: (\S+)\n").group(1)
        return Joiner(address, token, *options, inside=inside)


class Waiting:
    """A launch of this process that waits for other machines; ``said`` is what it has written."""

    def __init__(self, run: Any, said: io.StringIO) -> None:
        self.run = run
        self.said = said
        self.joined: list[Joiner] = []
        self.address = self.match(r"notebook-accel join (\S+)").group(1)
        self.match(r"token: (\S+)\n")
        self.tokens = re.findall(r"token: (\S+)", said.getvalue())

    def match(self, pattern: str) -> re.Match[str]:
        """Wait until it has written what ``pattern`` finds."""
        return wait_for(self.said.getvalue, pattern)

    def join(self) -> Joiner:
        """Join it as one should."""
        self.joined.append(Joiner(self.address, self.tokens.pop(0)))
        return self.joined[-1]


@contextmanager
def joinable(
    main: Callable[..., Any],
    args: tuple[Any, ...] = (),
    num_processes: int = 2,
    num_nodes: int = 2,
    **how: Any,
) -> Iterator[Waiting]:
    """Launch ``main`` for machines to join; what is left of it is ended."""
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        how = {"num_nodes": num_nodes, "device": "cpu", "block": False, **how}
        run = notebook_launcher(main, args, num_processes, join=True, **how)
        joined: list[Joiner] = []
        try:
            waiting = Waiting(run, said)
            joined = waiting.joined
            yield waiting
        finally:
            for joiner in joined:
                joiner.__exit__()
            if not run.done:
                run.kill()
            run._thread.join(WAIT_S)

"""What ranks write, from file descriptors 1 and 2 of a worker to the cell: whole lines, tagged.

Capturing descriptors (not ``sys.stdout``) catches C++ prints and subprocesses too. One pipe for
each rank and stream keeps lines whole; the kernel cuts them and writes a batch at a time.
"""

from __future__ import annotations

import builtins
import os
import sys
import time
from collections.abc import Callable
from io import TextIOWrapper
from string import Template
from typing import Any

from notebook_accel.config.words import spanned
from notebook_accel.errors import LaunchError
from notebook_accel.events.model import Display, Output
from notebook_accel.events.sinks import Sink
from notebook_accel.launch.folding import Folder

# Marks a line that speaks for the run and gets no tag; never seen by anybody.
_ANNOUNCED = "\x1e"
MAX_LINE_BYTES = 1 << 16
WRITE_INTERVAL_S = 0.05


class WorkerText(TextIOWrapper):
    """A worker's ``sys.stdout`` or ``sys.stderr``: line-buffered, onto its captured descriptor."""

    def __init__(self, fd: int) -> None:
        super().__init__(
            open(fd, "wb", closefd=False),  # noqa: SIM115
            encoding="utf-8",
            errors="backslashreplace",
            line_buffering=True,
        )

    def announce(self, text: str) -> None:
        """Write ``text`` as the run's own words: its lines carry no rank."""
        self.write("".join(_ANNOUNCED + line for line in text.splitlines(keepends=True)))


def redirect(stdout: int, stderr: int, rank: int) -> None:
    """Point this worker's streams at its pipes, its stdin at nothing, and refuse ``input()``."""
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, target in ((stdout, 1), (stderr, 2), (null, 0)):
        os.dup2(fd, target)
        os.close(fd)
    sys.stdout = sys.__stdout__ = WorkerText(1)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = WorkerText(2)  # type: ignore[misc]
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc] # noqa: SIM115

    def refuse(prompt: object = "") -> str:
        raise LaunchError(
            f"input({prompt!r}) cannot be answered in worker {rank}",
            "a worker is another process, without the notebook's input box",
            "ask in the cell before the launch and pass the answer in args=(...)",
        )

    builtins.input = refuse


def flush() -> None:
    """Write out what this process still holds, as far as the user left its streams usable."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass  # closed or replaced by the user, or nobody reads any more


class LineCutter:
    """Bytes of one pipe in, whole lines out. ``\\r`` ends a line too, for progress bars."""

    def __init__(self, rank: int, stream: str) -> None:
        self._rank = rank
        self._stream = stream
        self._rest = b""

    def feed(self, data: bytes) -> list[Output]:
        """Take what was read; give the lines that are now whole, in batches of one kind."""
        data = self._rest + data
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not cut and len(data) > MAX_LINE_BYTES:
            cut = len(data)
        self._rest = data[cut:]
        return self._outputs(data[:cut].decode("utf-8", "replace"))

    def finish(self) -> list[Output]:
        """The pipe has ended: give what was left of a last line, with an end to it."""
        text = self._rest.decode("utf-8", "replace")
        self._rest = b""
        return self._outputs(text + "\n") if text else []

    def _outputs(self, text: str) -> list[Output]:
        if _ANNOUNCED not in text:
            return [Output(self._rank, self._stream, text)] if text else []
        outputs: list[Output] = []
        for line in _lines(text):
            said = line.startswith(_ANNOUNCED)
            line = line.replace(_ANNOUNCED, "")
            if outputs and outputs[-1].announced == said:
                line = outputs.pop().text + line
            outputs.append(Output(self._rank, self._stream, line, said))
        return outputs


def _lines(text: str) -> list[str]:
    """Split after ``\\n``, ``\\r\\n`` and ``\\r`` only (``splitlines`` also cuts at form feeds)."""
    lines = []
    for line in text.split("\n"):
        parts = line.split("\r")
        lines += [part + "\r" for part in parts[:-1]]
        lines.append(parts[-1] + "\n")
    if lines[-1] == "\n":
        lines.pop()
    elif not text.endswith("\n"):
        lines[-1] = lines[-1][:-1]
    return [line for line in lines if line]


def write_here(stream: str, text: str) -> None:
    """Write ``text`` to this process's own "stdout" or "stderr"."""
    target = sys.stdout if stream == "stdout" else sys.stderr
    target.write(text)
    target.flush()


def say(text: str, name: str = "") -> None:
    """Print lines of the run ``name`` at once: another run's thread may print meanwhile."""
    print("".join(f"{prefix(name)}{line}\n" for line in text.splitlines()), end="")


def prefix(name: str) -> str:
    """What the lines of the run ``name`` begin with; nothing where it has no name."""
    return f"[{name}] " if name else ""


class Console(Sink):
    """A sink that writes the ranks' lines under the cell, a batch at a time, tagged by rank.

    The same line of several ranks is written once, and so is one that is repeated. A run of one
    rank, and what ``accelerator.print`` says, has no tag. ``template`` is a ``string.Template``
    over rank, local_rank and role_name, as torch elastic has it: each rank's lines then stay its
    own. ``write`` puts text on the named stream. ``first_rank`` is the lowest rank here. ``name``
    is the run's, where others go on.
    """

    def __init__(
        self,
        num_ranks: int,
        template: str | None = None,
        write: Callable[[str, str], None] = write_here,
        first_rank: int = 0,
        name: str = "",
    ) -> None:
        self._put = write
        self._num_ranks = num_ranks
        self._first_rank = first_rank
        self._prefix = prefix(name)
        self._template = None if template is None else Template(template)
        self._folder = Folder(num_ranks, self._tag)
        self._batch: list[tuple[str, str]] = []
        self._due = 0.0

    def handle(self, event: Any) -> None:
        """Take the lines of one rank, or let what was said before a rich output come before it."""
        if isinstance(event, Display):
            self._write(everything=True)
        elif not isinstance(event, Output):
            return
        elif event.announced:
            self._take(self._folder.due(everything=True))
            lines = [self._prefix + line for line in _lines(event.text)]
            self._take([(event.stream, "".join(lines))])
        elif self._template is not None:
            tag = self._tag([event.rank])
            lines = [tag + line if line.strip("\r\n") else line for line in _lines(event.text)]
            self._take([(event.stream, "".join(lines))])
        else:
            self._folder.add(event.rank, event.stream, _lines(event.text))

    def tick(self) -> None:
        """Write the batch if the last one was written a while ago."""
        if time.monotonic() >= self._due:
            self._write(everything=False)

    def close(self) -> None:
        """Write what is left."""
        self._write(everything=True)

    def _tag(self, ranks: list[int]) -> str:
        tag = ""
        if self._template is not None:
            tag = self._template.safe_substitute(
                rank=self._first_rank + ranks[0], local_rank=ranks[0], role_name="default"
            )
        elif self._num_ranks > 1:
            tag = f"[{spanned([self._first_rank + rank for rank in ranks])}] "
        return self._prefix + tag

    def _take(self, texts: list[tuple[str, str]]) -> None:
        for stream, text in texts:
            if self._batch and self._batch[-1][0] == stream:
                text = self._batch.pop()[1] + text
            self._batch.append((stream, text))

    def _write(self, everything: bool) -> None:
        self._take(self._folder.due(everything=everything))
        batch, self._batch = self._batch, []
        for stream, text in batch:
            self._put(stream, text)
        if batch:
            self._due = time.monotonic() + WRITE_INTERVAL_S


class RankLogs(Sink):
    """A sink that keeps what each rank wrote, at most the last ``max_chars`` of it."""

    def __init__(self, num_ranks: int, max_chars: int = 4_000_000) -> None:
        self._parts: list[list[str]] = [[] for _ in range(num_ranks)]
        self._sizes = [0] * num_ranks
        self._max_chars = max_chars

    def handle(self, event: Any) -> None:
        """Keep the lines of one rank."""
        if isinstance(event, Output):
            parts = self._parts[event.rank]
            parts.append(event.text)
            self._sizes[event.rank] += len(event.text)
            while self._sizes[event.rank] > self._max_chars and len(parts) > 1:
                self._sizes[event.rank] -= len(parts.pop(0))

    def texts(self) -> list[str]:
        """Give what each rank wrote, in rank order."""
        return ["".join(parts) for parts in self._parts]

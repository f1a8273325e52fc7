"""A guard rail: a file that one rank writes and another reads, with no meeting of ranks between.

In launched runs each rank notes on a page that all of its machine share which files it wrote, and
when. A rank that opens a file for reading looks there, if anybody wrote after it last left a
collective: whoever wrote before that did so before the collective too, or nearly.

    a rank's words:  when it wrote last, how many files, then (path, time) for the newest of them
"""

from __future__ import annotations

import functools
import os
import sys
import time
import zlib
from collections.abc import Iterator
from operator import itemgetter
from types import FrameType
from typing import Any

import torch

from notebook_accel.config import guards
from notebook_accel.config.placement import Placement
from notebook_accel.events import rails
from notebook_accel.events.lines import BETWEEN, THE_PERSON, US, owner_of, persons_frame
from notebook_accel.events.pulse import Pulse

NEWEST, COUNT, FIRST = range(3)
NUM_KEPT = 32
NUM_WORDS = FIRST + 2 * NUM_KEPT
NUM_BYTES = NUM_WORDS * 8
GUARD = "file-race"
_WRITES = os.O_WRONLY | os.O_RDWR
_NO_FILES = ("/dev/", "/proc/", "/sys/")
# Whose reading is the person's: others keep caches, behind locks of their own.
_READERS = {"torch", "numpy", "pandas", "safetensors", "PIL", "yaml"}
_COMPILERS = {"_dynamo", "_functorch", "_inductor"}  # parts of torch that keep caches


class Files:
    """What the ranks of a machine wrote; ``room`` has ``NUM_BYTES`` for each, ``rank`` is ours."""

    def __init__(self, room: memoryview, rank: int, num_ranks: int) -> None:
        self._words = room.cast("q")
        self._own = rank * NUM_WORDS
        self._others = [one * NUM_WORDS for one in range(num_ranks) if one != rank]
        self._newest = [one + NEWEST for one in self._others]
        self._mine: set[int] = set()
        self._read_ns = 0  # the others' newest write when their files were read last
        self._known: dict[int, tuple[int, int]] = {}  # their files: who wrote them, and when

    def wrote(self, path: Any) -> None:
        """Note that this rank wrote the file ``path``."""
        words, own, now = self._words, self._own, time.monotonic_ns()
        at = own + FIRST + 2 * (words[own + COUNT] % NUM_KEPT)
        mark = _mark(path)
        if not mark:
            return
        words[at], words[at + 1] = mark, now
        self._mine.add(mark)
        words[own + COUNT] += 1
        words[own + NEWEST] = now

    def is_news(self, since_ns: int) -> bool:
        """Whether another rank wrote any file after ``since_ns``."""
        words = self._words
        for one in self._newest:  # noqa: SIM110 - a loop costs less than any()
            if words[one] > since_ns:
                return True
        return False

    def writer(self, path: Any, since_ns: int) -> tuple[int, int] | None:
        """Give the local rank that wrote ``path`` after ``since_ns``, and when; None for nobody.

        A file that this rank wrote as well is its own.
        """
        mark = _mark(path)
        if not mark or mark in self._mine:
            return None
        newest = max(map(self._words.__getitem__, self._newest), default=0)
        if newest != self._read_ns:
            self._read_ns, self._known = newest, dict(self._read())
        found = self._known.get(mark)
        return found if found is not None and found[1] > since_ns else None

    def _read(self) -> Iterator[tuple[int, tuple[int, int]]]:
        for start in self._others:
            kept = self._words[start + FIRST : start + NUM_WORDS].tolist()
            for mark, when in sorted(zip(kept[::2], kept[1::2], strict=True), key=itemgetter(1)):
                yield mark, (start // NUM_WORDS, when)


def watch_files(room: memoryview, placement: Placement, pulse: Pulse) -> None:
    """Look at every file that this process opens from now on; once a process, for good."""
    if not guards.wanted(GUARD):
        return
    files = Files(room, placement.local_rank, placement.local_size)
    process = os.getpid()
    speaking: list[bool] = []
    is_news = files.is_news

    def look(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if flags & _WRITES:
                if not flags & os.O_APPEND and os.getpid() == process:  # else: logs, and children
                    files.wrote(path)
            elif is_news(pulse.left_ns) and not speaking and os.getpid() == process:
                speaking.append(True)  # to speak of it opens files too
                try:
                    _compare(files, path, placement, pulse.left_ns)
                finally:
                    speaking.clear()
        elif event == "os.rename" and os.getpid() == process:
            files.wrote(args[1])

    sys.addaudithook(look)
    torch.save = _noted(torch.save, files)


def _compare(files: Files, path: Any, placement: Placement, since_ns: int) -> None:
    found = files.writer(path, since_ns)
    if found is None or os.fspath(path).startswith(_NO_FILES):
        return
    frame = sys._getframe(2)
    person = persons_frame(frame)
    if person is None or not _is_the_persons(frame, person):
        return
    rank = placement.rank - placement.local_rank + found[0]
    ago_s = (time.monotonic_ns() - found[1]) / 1e9
    rails.warn(
        GUARD,
        f"rank {placement.rank} reads {os.fspath(path)!r}, which rank {rank} wrote {ago_s:.3g} s "
        "ago, with no barrier between",
        "each rank runs at its own pace: another time it is not there yet, or half written",
        "call accelerator.wait_for_everyone() on all ranks between writing and reading",
        *rails.line_of(person),
    )


def _is_the_persons(frame: FrameType | None, person: FrameType) -> bool:
    """Whether the person's line reads the file, with nothing between but who reads for them."""
    while frame is not None and frame is not person:
        filename = frame.f_code.co_filename
        owner = owner_of(filename)
        _, _, inside = filename.rpartition("-packages" + os.sep)
        library, part, *_ = [*inside.split(os.sep), ""] if inside != filename else ["", ""]
        if library == "torch" and part in _COMPILERS:
            return False
        if owner == US or (owner == BETWEEN and library and library not in _READERS):
            return False
        frame = frame.f_back
    return owner_of(person.f_code.co_filename) == THE_PERSON


def _noted(save: Any, files: Files) -> Any:
    """torch.save, which writes from C++, where no hook sees it."""

    def noted_save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        save(obj, f, *args, **kwargs)
        if isinstance(f, (str, os.PathLike)):
            files.wrote(f)

    # To whoever reads the stack this is part of torch: the person's line calls torch.save.
    noted_save.__code__ = noted_save.__code__.replace(co_filename=save.__code__.co_filename)
    return functools.update_wrapper(noted_save, save)


def _mark(path: Any) -> int:
    """A number for a file's place: 62 bits, never 0; 0 for a descriptor, which has none."""
    if isinstance(path, int):
        return 0
    text = os.path.abspath(os.fsencode(path))
    return zlib.crc32(text) << 30 | zlib.adler32(text) & 0x3FFFFFFF | 1

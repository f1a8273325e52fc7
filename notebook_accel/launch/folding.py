"""The same line of several ranks, or many times over, told once.

A line waits a moment for the other ranks to say the same. What is dropped here is in the logs.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

HOLD_S = 0.15  # for the same line of other ranks
ECHO_S = 1.0  # for more of a line that a rank says again and again
MAX_WAITING = 1000
FEW = 3  # so often a line may stand there again
_WARNING = re.compile(r"^\S.*:\d+: \w*(Warning|GuardRail): ")


@dataclass(eq=False)
class _Entry:
    """A line that waits: how often each rank has said it; ``again`` if it was just shown.

    ``number`` counts entries in their order.
    """

    number: int
    stream: str
    line: str
    due: float
    times: dict[int, int] = field(default_factory=dict)
    again: bool = False


class Folder:
    """Takes lines of ranks, gives text to write; ``tag`` names several ranks at once."""

    def __init__(self, num_ranks: int, tag: Callable[[list[int]], str]) -> None:
        self._num_ranks = num_ranks
        self._tag = tag
        self._waiting: list[_Entry] = []
        self._newest: dict[int, _Entry] = {}  # of each rank, of those that wait
        self._by_line: dict[tuple[str, str], list[_Entry]] = {}
        self._num_entries = 0
        self._shown: dict[int, tuple[str, str]] = {}  # what each rank said last
        self._warned: set[str] = set()
        self._is_skipping: set[int] = set()

    def add(self, rank: int, stream: str, lines: Iterable[str], now: float | None = None) -> None:
        """Take whole lines, with their ends, of one rank."""
        now = time.monotonic() if now is None else now
        for line in lines:
            if stream == "stderr" and self._is_old_warning(rank, line):
                continue
            self._take(rank, stream, line, now)

    def due(self, now: float | None = None, everything: bool = False) -> list[tuple[str, str]]:
        """Give (stream, text) for all that need not wait any longer, in order."""
        now = time.monotonic() if now is None else now
        last = 0
        for index, entry in enumerate(self._waiting, 1):
            if everything or now >= entry.due or self._is_whole(entry):
                last = index
        if len(self._waiting) > MAX_WAITING:
            last = len(self._waiting)
        out, self._waiting = self._waiting[:last], self._waiting[last:]
        return [(entry.stream, text) for entry in out for text in self._told(entry)]

    def _take(self, rank: int, stream: str, line: str, now: float) -> None:
        newest, key = self._newest.get(rank), (stream, line)
        if not line.strip() or not line.endswith(
            "\n"
        ):  # an empty line, a bar, a piece: as it comes
            self._append(rank, stream, line, now)
            return
        if newest is not None and (newest.stream, newest.line) == key:
            newest.times[rank] += 1
            return
        again = newest is None and self._shown.get(rank) == key
        for same in self._by_line.get(key, ()):
            is_later = newest is None or newest.number < same.number
            if rank not in same.times and is_later and same.again == again:
                same.times[rank] = 1
                self._newest[rank] = same
                return
        entry = self._append(rank, stream, line, now + (ECHO_S if again else HOLD_S), again)
        self._by_line.setdefault(key, []).append(entry)

    def _append(self, rank: int, stream: str, line: str, due: float, again: bool = False) -> _Entry:
        self._num_entries += 1
        entry = _Entry(self._num_entries, stream, line, due, {rank: 1}, again)
        self._waiting.append(entry)
        self._newest[rank] = entry
        return entry

    def _is_whole(self, entry: _Entry) -> bool:
        return len(entry.times) == self._num_ranks and not entry.again

    def _told(self, entry: _Entry) -> list[str]:
        key = (entry.stream, entry.line)
        if entry in self._by_line.get(key, ()):
            self._by_line[key].remove(entry)
            if not self._by_line[key]:
                del self._by_line[key]
        for rank in entry.times:
            self._shown[rank] = key
            if self._newest.get(rank) is entry:
                del self._newest[rank]
        if entry.stream == "stderr" and _WARNING.match(entry.line):
            self._warned.add(entry.line)
        if not entry.line.strip("\r\n"):
            return [entry.line]
        return [
            text for times in sorted({*entry.times.values()}) for text in self._of(entry, times)
        ]

    def _of(self, entry: _Entry, times: int) -> list[str]:
        """What to write for the ranks that have said a line so often."""
        tag = self._tag(sorted(rank for rank, said in entry.times.items() if said == times))
        if times < FEW:
            return [tag + entry.line] * times
        if entry.again:
            return [f"{tag}(the same line x{times})\n"]
        return [f"{tag}{entry.line.rstrip()}  (x{times})\n"]

    def _is_old_warning(self, rank: int, line: str) -> bool:
        """Whether a line belongs to a warning that was shown already."""
        if line in self._warned:
            self._is_skipping.add(rank)
            return True
        if rank in self._is_skipping and line.startswith("  "):
            return True
        self._is_skipping.discard(rank)
        return False

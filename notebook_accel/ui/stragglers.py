"""For whom the others wait: seen from the ranks' pulses, a few looks a second."""

from __future__ import annotations

import time
from collections.abc import Sequence

from notebook_accel.events.pulse import Beat

LOOK_EVERY_S = 0.04
MEMORY_LOOKS = 100
TOO_MUCH = 0.2


class Stragglers:
    """Counts how often each rank is the one that has not yet come to a meeting.

    A rank is behind while it has entered fewer collectives than another that is in one now.
    """

    def __init__(self) -> None:
        self.behind: dict[int, float] = {}  # rank -> share of the looks of late
        self._num_looks = 0
        self._due = 0.0

    def look(self, beats: Sequence[Beat], live: Sequence[int], now: float | None = None) -> None:
        """Take one look at the ``live`` ranks, if the last is some time ago."""
        now = time.monotonic() if now is None else now
        if now < self._due or len(live) < 2:
            return
        self._due = now + LOOK_EVERY_S
        self._num_looks += 1
        weight = max(1 / MEMORY_LOOKS, 1 / self._num_looks)
        waiting = [beats[rank].entered for rank in live if beats[rank].inside]
        top = max(waiting, default=0)
        for rank in live:
            before = self.behind.get(rank, 0.0)
            self.behind[rank] = before + weight * ((beats[rank].entered < top) - before)

    @property
    def slowest(self) -> tuple[int, float] | None:
        """The rank for which the others wait, and how much of their time; None if nobody."""
        if self._num_looks < MEMORY_LOOKS // 4 or not self.behind:
            return None
        ordered = sorted(self.behind, key=lambda rank: self.behind[rank], reverse=True)
        first, second = self.behind[ordered[0]], self.behind[ordered[1]]
        return (ordered[0], first) if first > TOO_MUCH and first > 2 * second else None

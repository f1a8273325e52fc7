"""When a run was at which step: so that a curve can be seen over time and epochs as well."""

from __future__ import annotations

import time
from typing import Any

from notebook_accel.events.model import Progress
from notebook_accel.events.sinks import Sink

Mark = tuple[float, float, float]  # step, seconds since the first one, passes over the data


class Timeline(Sink):
    """Marks of a run's way, from the Progress events of its lowest rank: a Sink of bounded size.

    A loop that starts to count again goes on where the last one was, as its curves do.
    """

    MAX_MARKS = 256

    def __init__(self) -> None:
        self.marks: list[Mark] = []
        self._rank: int | None = None
        self._began = 0.0
        self._newest: Mark | None = None
        self._base = (0, 0.0)  # step and epoch of earlier loops
        self._counted = 0  # the newest step as the loop counts it
        self._stride = 1
        self._num_seen = 0

    def handle(self, event: Any, now: float | None = None) -> None:
        """Take one event; ``now`` is its time on the monotonic clock."""
        if not isinstance(event, Progress):
            return
        now = time.monotonic() if now is None else now
        if self._rank is None or event.rank < self._rank:
            self._rank = event.rank
            self._began = self._began or now
        if event.rank != self._rank:
            return
        if event.step < self._counted and self._newest is not None:
            self._base = (int(self._newest[0]), self._newest[2])
        self._counted = event.step
        epoch = float(event.epoch)
        if event.num_batches:
            epoch += event.batch / event.num_batches
        mark = (
            float(self._base[0] + event.step),
            now - self._began,
            max(self._base[1] + epoch, 0.0 if self._newest is None else self._newest[2]),
        )
        self._newest = mark
        if self._num_seen % self._stride == 0:
            self.marks.append(mark)
        self._num_seen += 1
        if len(self.marks) >= self.MAX_MARKS:
            self.marks = self.marks[::2]
            self._stride *= 2

    def with_newest(self) -> list[Mark]:
        """All marks, the newest one included."""
        if self._newest is None or self.marks[-1] == self._newest:
            return self.marks
        return [*self.marks, self._newest]

"""Workers on their way: the time from the launch to the first line of the person's function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from notebook_accel.events.model import Exited, Started, Task
from notebook_accel.events.sinks import Sink

NAME = "starting workers"


class Arrivals(Sink):
    """A sink that tells the others how many workers have started.

    A forkserver that still imports, and a cold disk, make this long.
    """

    def __init__(self, others: Sequence[Sink], num_ranks: int) -> None:
        self._others = others
        self._num_ranks = num_ranks
        self._arrived = 0
        self._say(0)

    def handle(self, event: Any) -> None:
        """Count a worker that has started; one that ended will not be waited for."""
        if isinstance(event, Started) and self._arrived < self._num_ranks:
            self._arrived += 1
            self._say(self._arrived)
        elif isinstance(event, Exited) and self._arrived < self._num_ranks:
            self._arrived = self._num_ranks
            self._say(self._arrived)

    def _say(self, done: int) -> None:
        for sink in self._others:
            sink.handle(Task(-1, NAME, done, self._num_ranks, "ranks"))

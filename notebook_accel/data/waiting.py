"""How long a loop waits for its data: measured over its first seconds, then never again."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

from notebook_accel.events import context, rails
from notebook_accel.events.lines import persons_frame

LOOK_S = 10.0
TOO_MUCH = 0.3
_END = object()


class Waiting:
    """Measures the passes over one loader until it has seen ``LOOK_S`` of them."""

    def __init__(self) -> None:
        self.done = False
        self._waited_s = 0.0
        self._looked_s = 0.0

    def watch(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Give ``batches`` on; the first of a pass does not count, for it starts the workers."""
        now = time.perf_counter
        batch = next(batches, _END)
        while batch is not _END and not self.done:
            given = now()
            yield batch
            asked = now()
            batch = next(batches, _END)
            came = now()
            self._waited_s += came - asked
            self._looked_s += came - given
            if self._looked_s >= LOOK_S:
                self._judge()
        if batch is not _END:
            yield batch
            yield from batches

    def _judge(self) -> None:
        self.done = True
        share = self._waited_s / self._looked_s
        worker = context.current()
        if share <= TOO_MUCH or (worker is not None and worker.placement.rank != 0):
            return
        person = persons_frame(sys._getframe(1))
        rails.warn(
            "slow-loader",
            f"the loop waited for data during {share:.0%} of its first {self._looked_s:.0f} s",
            "the next batch is not ready when the step before it is done",
            "give the DataLoader num_workers (or more of them), or make samples cheaper to load",
            *(("", 0) if person is None else (person.f_code.co_filename, person.f_lineno)),
        )

"""Whether a loop waits for its data: judged once, after the first seconds of passes over a loader.

How long each batch took to come is measured by the pass in any case; this only adds it up.
"""

from __future__ import annotations

import math
import sys

from notebook_accel.events import context, rails
from notebook_accel.events.lines import persons_frame

LOOK_S = 10.0
TOO_MUCH = 0.3


class Waiting:
    """The judgment on one loader: looks on until it has seen ``LOOK_S`` of passes over it."""

    def __init__(self) -> None:
        self.waited_s = 0.0
        self.looked_s = 0.0
        self.left_s = LOOK_S

    def begin(self) -> Look:
        """Look at a pass."""
        return Look(self)

    def judge(self, waited_s: float, looked_s: float) -> None:
        """Speak up if a loop waited too long; nobody looks any more afterwards."""
        self.left_s = math.inf
        share = waited_s / looked_s
        worker = context.current()
        if share <= TOO_MUCH or (worker is not None and worker.placement.rank != 0):
            return
        person = persons_frame(sys._getframe(1))
        rails.warn(
            "slow-loader",
            f"the loop waited for data during {share:.0%} of its first {looked_s:.0f} s",
            "the next batch is not ready when the step before it is done",
            "give the DataLoader num_workers (or more of them), or make samples cheaper to load",
            *rails.line_of(person),
        )


class Look:
    """One pass: the loop adds to ``waited_s``, and calls ``at`` for a batch that comes at ``due``.

    Units: seconds of ``time.perf_counter``.
    """

    __slots__ = ("_began", "_waiting", "due", "waited_s")

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._began = 0.0
        self.waited_s = 0.0
        self.due = 0.0 if waiting.left_s < math.inf else math.inf

    def at(self, came: float) -> None:
        """Begin with the first batch, which does not count, for it starts the workers; or judge."""
        waiting = self._waiting
        if not self._began:
            self._began, self.waited_s = came, 0.0
            self.due = came + waiting.left_s
        else:
            self.due = math.inf
            looked_s = waiting.looked_s + came - self._began
            waiting.judge(waiting.waited_s + self.waited_s, looked_s)

    def end(self, now: float) -> None:
        """End the pass, judged or not."""
        if self._began and self.due < math.inf:
            looked_s = now - self._began
            self._waiting.waited_s += self.waited_s
            self._waiting.looked_s += looked_s
            self._waiting.left_s -= looked_s

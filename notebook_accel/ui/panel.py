"""All that is known of a run while it goes, as plain state; screens look at it and draw."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from notebook_accel.events.controls import Controls
from notebook_accel.events.history import History
from notebook_accel.events.model import Metrics, Progress, Task
from notebook_accel.events.rates import Rates
from notebook_accel.events.sinks import Sink
from notebook_accel.events.timeline import Timeline
from notebook_accel.ui import words
from notebook_accel.ui.alarms import Alarms
from notebook_accel.ui.curves import Curves
from notebook_accel.ui.ranks import Ranks
from notebook_accel.ui.tails import Tails

TASK_AFTER_S = 1.0  # nothing is said of a task that is over sooner
TASK_LASTS_S = 30.0  # without news, one of unknown length is not shown for ever


class Panel(Sink):
    """The state of the view: a Sink. ``began`` is when there was first something to show."""

    def __init__(
        self, history: History, title: str, num_ranks: int, controls: Controls | None = None
    ) -> None:
        self.history = history
        self.title = title
        self.num_ranks = num_ranks
        self.controls = controls
        self.began: float | None = None
        self.over = ""  # the summary, once the run has ended
        self.stop_asked = False
        self.rates = Rates(num_ranks)
        self.timeline = Timeline()
        self.curves = Curves(history)
        self.alarms = Alarms()
        self.ranks = Ranks(num_ranks, controls)
        self.tails = Tails()
        self._tasks: dict[tuple[int, str], tuple[Task, float, float]] = {}

    def handle(self, event: Any) -> None:
        """Take one event, after the history saw it."""
        self.ranks.handle(event)
        if isinstance(event, Metrics | Progress):
            self.began = self.began or time.monotonic()
            self.alarms.handle(event)
            self.rates.handle(event)
            self.timeline.handle(event)
        elif isinstance(event, Task):
            self._note_task(event, time.monotonic())
        else:
            self.tails.handle(event)

    def tick(self) -> None:
        """Look at what does not come by itself."""
        self.ranks.tick()
        if self.began is None and self.tasks():
            self.began = time.monotonic()

    def close(self, at: float | None = None) -> None:
        """The run is over, since ``at`` if that is known: sum it up."""
        self._tasks.clear()
        after_s = 0.0 if at is None else time.monotonic() - at
        self.over = words.summary(self.rates, max(0.0, self.alive_s - after_s), self.ending)

    # ── what it says ──────────────────────────────────────────────────────────────────────────

    @property
    def alive_s(self) -> float:
        """Seconds since there was something to show."""
        return 0.0 if self.began is None else time.monotonic() - self.began

    @property
    def line(self) -> str:
        """Where the run is, or how it ended."""
        return self.over or words.status(self.history, self.rates)

    @property
    def ending(self) -> str:
        """Why the run ended before its end; "" if it did not."""
        return next((ending for ending in self.ranks.ending.values() if ending), "")

    @property
    def fraction(self) -> float | None:
        """How much of this pass over the data is done; None when unknown."""
        newest = self.rates.newest
        if newest is None or not newest.num_batches:
            return None
        return min(1.0, newest.batch / newest.num_batches)

    @property
    def epoch(self) -> str:
        """Of which pass ``fraction`` is a part."""
        newest = self.rates.newest
        return "" if newest is None else f"epoch {newest.epoch}"

    @property
    def hint(self) -> str:
        """How the run can be stopped; "" when it cannot, or need not."""
        if self.controls is None or self.over:
            return ""
        if self.controls.is_blocking:
            return "the interrupt button (■) stops it after a step"
        return "it stops after this step…" if self.stop_asked else ""

    def marks(self) -> list[str]:
        """For whom the others wait, in words."""
        return [f"rank {row.rank}: {row.mark}" for row in self.ranks.rows() if row.mark]

    def tasks(self, now: float | None = None) -> list[str]:
        """What long things are being done, and how far they are."""
        now = time.monotonic() if now is None else now
        return [
            words.task(task)
            for task, began, seen in self._tasks.values()
            if now - began >= TASK_AFTER_S and now - seen < TASK_LASTS_S
        ]

    def ask(self, what: str) -> None:
        """Do what a button asks for; from any thread, and too late does no harm."""
        if self.controls is None or self.over:
            return
        calls: dict[str, Callable[[], None]] = {
            "stop": self.controls.stop,
            "kill": self.controls.kill,
        }
        if what in calls:
            self.stop_asked = True
            calls[what]()

    def _note_task(self, task: Task, now: float) -> None:
        key = (task.rank, task.name)
        if task.total is not None and task.done >= task.total:
            self._tasks.pop(key, None)
            return
        began = self._tasks[key][1] if key in self._tasks else now
        self._tasks[key] = (task, began, now)

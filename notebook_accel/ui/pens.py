"""Pens of loops that run without a launch: what they write is shown at once, where they run.

A run begins with a pen's first number. It ends with its cell or its script, or sooner: when a pen
begins that was made after the last word of this one. So trainings that follow each other are runs
of their own, and those of one loop, as a GAN's two, go on side by side.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Protocol

from notebook_accel.events.emitter import Emitter
from notebook_accel.events.history import History
from notebook_accel.events.model import Failed, Returned


class Shown(Protocol):
    """One run of a pen, as it is shown."""

    def handle(self, event: Any) -> None:
        """Take one event, after the history saw it."""
        ...

    def close(self, at: float, error: BaseException | None) -> None:
        """The run ended ``at`` that monotonic time, with ``error``."""
        ...


class Pen(Emitter):
    """A pen without a pipe: what it writes is drawn at once, here.

    ``show`` makes what shows a run, given the curves so far and the run's number on its stage.
    ``at_end`` functions are called when a run ends, before its last picture.
    """

    def __init__(self, stage: Stage, show: Callable[[History, int], Shown]) -> None:
        super().__init__(0, -1)
        self.at_end: list[Callable[[], None]] = []
        self.history = History()
        self.since = self.spoke = time.monotonic()  # when it was made or ended, and last written
        self._stage = stage
        self._show = show
        self._run: Shown | None = None
        stage.newest = self.since

    def metric(self, name: str, step: int, value: float) -> None:
        """Note one point of a series."""
        self.spoke = time.monotonic()
        super().metric(name, step, value)

    def stepped(
        self, step: int, means: list[tuple[str, float]], where: Callable[[], list[Any]]
    ) -> None:
        """Note the end of an optimizer step."""
        self.spoke = time.monotonic()
        super().stepped(step, means, where)

    def flush(self) -> None:
        """Draw what was noted; a run that nobody sees yet begins with its first number."""
        super().flush()
        if self._run is None:  # there was nothing: a checkpoint was loaded, say
            self._due = 0.0

    def end(self, error: BaseException | None = None) -> None:
        """End the run that is shown; it took until the last word."""
        if self._run is None or os.getpid() != self._pid:
            return
        at = self.spoke
        for function in self.at_end:
            try:
                function()
            except RuntimeError:  # a device that has failed keeps its last numbers
                if error is None:
                    raise
        self.flush()
        self._due = 0.0  # a short run right after this one is shown too
        run, self._run = self._run, None
        self.history.close()
        run.close(at, error)
        self.since = time.monotonic()

    def _queue(self, event: Any) -> None:
        if os.getpid() != self._pid:  # a forked child has no cell
            return
        if self._run is None:
            self._run = self._show(self.history, self._stage.enter(self))
        self.history.handle(event)
        self._run.handle(event)


class Stage:
    """The cell that runs, or the script: whose runs are shown in it, in the order they began.

    ``newest`` is when the newest of all pens was made.
    """

    def __init__(self) -> None:
        self.newest = 0.0
        self._open: list[Pen] = []
        self._num_runs = 0

    def enter(self, pen: Pen) -> int:
        """Begin a run of ``pen`` and give its number; those that were over before it end here."""
        for other in [one for one in self._open if one.spoke < pen.since]:
            self._open.remove(other)
            other.end()
        self._open.append(pen)
        self._num_runs += 1
        return self._num_runs

    def end(self, error: BaseException | None = None) -> None:
        """End all runs. The ``error`` is of the pen that came last, which may not have begun."""
        pens, self._open, self._num_runs = self._open, [], 0
        last = max([self.newest, *(pen.spoke for pen in pens)])
        for pen in pens:
            pen.end(error if pen.spoke == last else None)


def ending(error: BaseException | None) -> Returned | Failed:
    """Say as an event how a run without a launch ended."""
    if error is None:
        return Returned(0, 0)
    return Failed(0, type(error).__name__, str(error), [], "")

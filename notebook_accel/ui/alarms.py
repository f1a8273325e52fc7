"""What somebody should look at now: a loss that is no number any more, or one that runs away."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from notebook_accel.events.model import Metrics
from notebook_accel.events.sinks import Sink
from notebook_accel.ui import words


@dataclass
class _Watch:
    """One loss: its smoothed value, the lowest that was, and what it began with."""

    count: int = 0
    smooth: float = 0.0
    lowest: float = math.inf
    lowest_at: int = 0
    began: float = 0.0


class Alarms(Sink):
    """Looks at every value of a loss as it arrives, before any averaging: a Sink.

    A value that is not finite is told once a series, at the earliest step known so far: ranks are
    heard one after the other. A loss that has risen to several times its
    lowest and above where it began is told once; several losses that pull against each other (a
    GAN's) rise and fall, and are not judged.
    """

    RISE = 4.0
    MIN_POINTS = 30
    MAX_BROKEN = 3
    WEIGHT = 0.1

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._broken: dict[str, tuple[int, int]] = {}  # series -> its step, and which text it is
        self._risen = self._several = False
        self._watches: dict[tuple[str, int], _Watch] = {}

    def handle(self, event: Any) -> None:
        """Take one event."""
        if not isinstance(event, Metrics):
            return
        for name, step, value in event.points:
            if value - value != 0:  # not finite, in the quickest way to ask
                self._break(event.rank, name, step, value)
            elif name == "loss":
                self._weigh(event.rank, name, step, value)
            elif name == "loss/2":
                self._several = True

    def _break(self, rank: int, name: str, step: int, value: float) -> None:
        known, place = self._broken.get(name, (math.inf, len(self.texts)))
        if step >= known or (name not in self._broken and len(self._broken) == self.MAX_BROKEN):
            return
        self._broken[name] = (step, place)
        self.texts[place : place + 1] = [f"{name} is {value:g} since step {step:,} (rank {rank})"]

    def _weigh(self, rank: int, name: str, step: int, value: float) -> None:
        watch = self._watches.setdefault((name, rank), _Watch())
        watch.count += 1
        weight = max(self.WEIGHT, 1 / watch.count)
        watch.smooth += weight * (value - watch.smooth)
        if watch.count < self.MIN_POINTS:
            watch.began = max(watch.began, watch.smooth)
        if watch.smooth < watch.lowest:
            watch.lowest, watch.lowest_at = watch.smooth, step
        elif (
            watch.count >= self.MIN_POINTS
            and not (self._risen or self._several)
            and watch.smooth > 1.5 * watch.began
            and watch.smooth > self.RISE * watch.lowest > 0
        ):
            self._risen = True
            self.texts.append(
                f"{name} has risen to {words.number(watch.smooth)} by step {step:,}, from "
                f"{words.number(watch.lowest)} at step {watch.lowest_at:,} (rank {rank})"
            )

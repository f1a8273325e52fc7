"""Where the ranks of a run are, how much they have done in it, and how fast they go."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from notebook_accel.events.model import Progress


class Tally:
    """What one rank has done in this run, from its Progress events.

    A loop that begins at a checkpoint, or goes on from an earlier cell, counts from there. Loops
    that follow each other in one function add up.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.samples = 0
        self.data_wait_s = 0.0
        self.newest: Progress | None = None

    def take(self, event: Progress) -> None:
        """Take the rank's newest word."""
        before = self.newest
        if before is None or event.from_step != before.from_step or event.step < before.step:
            before = Progress(event.rank, event.from_step)  # another loop: all of it is new
        self.steps += event.step - before.step
        self.samples += max(0, event.samples - before.samples)
        self.data_wait_s += max(0.0, event.data_wait_s - before.data_wait_s)
        self.newest = event

    @property
    def from_step(self) -> int:
        """The step that the run began at; 0 if it began at the start, or began several times."""
        newest = self.newest
        if newest is None or newest.step - newest.from_step != self.steps:
            return 0
        return newest.from_step


@dataclass(frozen=True)
class Pace:
    """How fast a run goes right now; None where nothing is known yet.

    Units: per second over the last seconds; ``samples_per_s`` over all ranks.
    """

    steps_per_s: float | None = None
    samples_per_s: float | None = None
    pass_left_s: float | None = None


class Rates:
    """Where the ranks are and how fast they go, from their Progress events."""

    WINDOW_S = 5.0
    SPACING_S = 0.25

    def __init__(self, num_ranks: int = 1) -> None:
        self.num_ranks = num_ranks
        self._tallies: dict[int, Tally] = {}
        self._marks: deque[tuple[float, int, int]] = deque()  # time, steps, samples of all ranks
        self._pass: tuple[int, float, int] | None = None  # epoch, time and batch of its first note
        self._now = 0.0

    def handle(self, event: Any, now: float | None = None) -> None:
        """Take one event; ``now`` is its time on the monotonic clock."""
        if not isinstance(event, Progress):
            return
        self._now = time.monotonic() if now is None else now
        self._tallies.setdefault(event.rank, Tally()).take(event)
        if self._pass is None or self._pass[0] != event.epoch:
            self._pass = (event.epoch, self._now, event.batch)
        if len(self._tallies) < self.num_ranks:
            return  # the sum over ranks would jump when the next one arrives
        if not self._marks or self._now - self._marks[-1][0] >= self.SPACING_S:
            self._marks.append((self._now, self.steps, self.samples))
        while len(self._marks) > 2 and self._now - self._marks[1][0] >= self.WINDOW_S:
            self._marks.popleft()

    @property
    def newest(self) -> Progress | None:
        """The newest word of the lowest rank that said any."""
        return self._tallies[min(self._tallies)].newest if self._tallies else None

    @property
    def step(self) -> int:
        """The optimizer step that all reporting ranks have come to."""
        newest = (tally.newest for tally in self._tallies.values())
        return min((one.step for one in newest if one is not None), default=0)

    @property
    def from_step(self) -> int:
        """The step that this run began at, where that is not the start."""
        return min((tally.from_step for tally in self._tallies.values()), default=0)

    @property
    def steps(self) -> int:
        """How many optimizer steps all reporting ranks have made in this run."""
        return min((tally.steps for tally in self._tallies.values()), default=0)

    @property
    def samples(self) -> int:
        """How many training samples all ranks together have seen in this run."""
        return sum(tally.samples for tally in self._tallies.values())

    def pace(self) -> Pace:
        """The pace over the last seconds, and the time left in this pass over the data."""
        steps_per_s = samples_per_s = None
        if self._marks and self._now > self._marks[0][0]:
            span_s = self._now - self._marks[0][0]
            steps_per_s = (self.steps - self._marks[0][1]) / span_s
            samples_per_s = (self.samples - self._marks[0][2]) / span_s
        return Pace(steps_per_s, samples_per_s, self._pass_left_s())

    def _pass_left_s(self) -> float | None:
        progress = self.newest
        if progress is None or self._pass is None or not progress.num_batches:
            return None
        _, since, first_batch = self._pass
        done, span_s = progress.batch - first_batch, self._now - since
        if done <= 0 or span_s <= 0:
            return None
        return max(0, progress.num_batches - progress.batch) * span_s / done

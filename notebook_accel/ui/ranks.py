"""One line for each rank: what it is doing, what it uses, and whether the others wait for it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from notebook_accel.config.words import size
from notebook_accel.events.controls import Controls
from notebook_accel.events.model import (
    Exited,
    Failed,
    Lost,
    Progress,
    Returned,
    Started,
    Stuck,
    signal_name,
)
from notebook_accel.events.sinks import Sink
from notebook_accel.ui import words
from notebook_accel.ui.gauges import Gauge, Gauges
from notebook_accel.ui.stragglers import Stragglers

_WAIT_SPACING_S = 1.0
_STARVED = 0.3  # of its time a rank waits for data
_LONG_IN_S = 2.0


@dataclass(frozen=True)
class Row:
    """What is said of one rank; ``mark`` is "" unless there is something to see to."""

    rank: int
    state: str
    step: int
    facts: tuple[str, ...]
    mark: str = ""

    def text(self) -> str:
        """The row as a line of text."""
        parts = [f"rank {self.rank}: {self.state}", f"step {self.step:,}" if self.step else ""]
        return words.SEPARATOR.join(part for part in (*parts, *self.facts, self.mark) if part)


class Ranks(Sink):
    """Follows the ranks of a run: a Sink. ``controls`` show in which collectives they are."""

    def __init__(self, num_ranks: int, controls: Controls | None) -> None:
        self.gauges = Gauges()
        self.ending: dict[int, str] = {}
        self._beats = controls.beats if controls is not None else tuple
        self._stragglers = Stragglers()
        self._states = ["starting"] * num_ranks
        self._over: set[int] = set()
        self._steps: dict[int, int] = {}
        self._waits: dict[int, tuple[float, float]] = {}  # time and data_wait_s when last looked
        self._starved: dict[int, float] = {}  # share of the time of late
        self._inside: dict[int, tuple[int, float]] = {}  # collective, since when

    def handle(self, event: Any) -> None:
        """Take one event."""
        if isinstance(event, Started):
            self._states[event.rank] = "running"
            if self._is_here(event.rank):
                self.gauges.handle(event)
        elif isinstance(event, Progress):
            self._states[event.rank] = "training"
            self._steps[event.rank] = event.step
            self._note_wait(event, time.monotonic())
        elif isinstance(event, Returned):
            self._end(event.rank, "stopped" if event.stopped else "done")
            self.ending[event.rank] = "stopped" if event.stopped else ""
        elif isinstance(event, Stuck):
            self.ending.setdefault(-1, "the ranks waited for each other")
        elif isinstance(event, Lost):
            self.ending.setdefault(-1, f"{event.machine} was lost")
        elif isinstance(event, Failed):
            raised = f"raised {event.type_name}"
            if event.type_name == "KeyboardInterrupt":
                raised = "interrupted"
            self._end(event.rank, raised)
            if not event.is_comm:
                who = f"rank {event.rank} " if len(self._states) > 1 else ""
                self.ending[event.rank] = who + raised
        elif isinstance(event, Exited):
            self.gauges.handle(event)
            self._note_exit(event)

    def _note_exit(self, event: Exited) -> None:
        if event.code != 0 and event.rank not in self._over:  # else it has said why itself
            self._end(event.rank, "stopped" if event.by_us else _how_it_left(event.code))
            left = "stopped" if event.by_us else f"rank {event.rank} {_how_it_left(event.code)}"
            self.ending.setdefault(event.rank, left)

    def _is_here(self, rank: int) -> bool:
        """Whether a rank is a process of this machine: the pulses of others are not seen here."""
        beats = self._beats()
        return not beats or rank < len(beats)

    def tick(self) -> None:
        """Look at the ranks from outside, if it is time."""
        self.gauges.tick()
        live = [rank for rank in range(len(self._states)) if rank not in self._over]
        beats = self._beats()
        if len(beats) == len(self._states):
            self._stragglers.look(beats, live)

    def rows(self) -> list[Row]:
        """What is to be said now, in rank order."""
        slowest = self._stragglers.slowest
        now, beats = time.monotonic(), self._beats()
        rows = []
        for rank, state in enumerate(self._states):
            mark = ""
            if slowest is not None and slowest[0] == rank and rank not in self._over:
                mark = f"the others wait for it, {slowest[1]:.0%} of the time"
            elif rank not in self._over and rank < len(beats) and beats[rank].inside:
                state = self._with_wait(rank, state, beats[rank].entered, beats[rank].kind, now)
            facts = (*_used(self.gauges.ranks.get(rank, Gauge())), *self._data(rank))
            rows.append(Row(rank, state, self._steps.get(rank, 0), facts, mark))
        return rows

    def last_rows(self) -> list[str]:
        """What stays to be said of each rank when the run is over."""
        rows = []
        for rank, state in enumerate(self._states):
            peak = self.gauges.peak_bytes.get(rank)
            facts = [f"up to {size(peak)}"] if peak else []
            rows.append(Row(rank, state, self._steps.get(rank, 0), tuple(facts)).text())
        return rows

    def _end(self, rank: int, state: str) -> None:
        if rank not in self._over:
            self._states[rank] = state
            self._over.add(rank)

    def _note_wait(self, event: Progress, now: float) -> None:
        looked_at, waited_s = self._waits.setdefault(event.rank, (now, event.data_wait_s))
        if now - looked_at >= _WAIT_SPACING_S:
            share = max(0.0, event.data_wait_s - waited_s) / (now - looked_at)
            self._starved[event.rank] = min(1.0, share)
            self._waits[event.rank] = (now, event.data_wait_s)

    def _data(self, rank: int) -> list[str]:
        share = self._starved.get(rank)
        if share is None or rank in self._over:
            return []
        return [f"waits for data {share:.0%}" + (" (much)" if share > _STARVED else "")]

    def _with_wait(self, rank: int, state: str, entered: int, kind: str, now: float) -> str:
        """Say where a rank waits, once it has been there for long."""
        number, since = self._inside.get(rank, (-1, now))
        if number != entered:
            self._inside[rank] = (entered, now)
            return state
        return f"in {kind} for {now - since:.0f} s" if now - since > _LONG_IN_S else state


def _used(gauge: Gauge) -> list[str]:
    facts = []
    if gauge.rss_bytes is not None:
        facts.append(size(gauge.rss_bytes))
    if gauge.cpu_share is not None:
        facts.append(f"CPU {gauge.cpu_share:.0%}")
    if gauge.gpu_bytes is not None and gauge.gpu_total_bytes is not None:
        facts.append(f"GPU {size(gauge.gpu_bytes)} of {size(gauge.gpu_total_bytes)}")
    if gauge.gpu_share is not None:
        facts.append(f"{gauge.gpu_share:.0%} busy")
    return facts


def _how_it_left(code: int) -> str:
    if code >= 0:
        return f"left with exit code {code}"
    return f"was killed by {signal_name(-code)}"

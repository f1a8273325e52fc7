"""What is known of a run beside its curves: what was asked, who took part, how it ended."""

from __future__ import annotations

import functools
import os
import platform
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from notebook_accel import __version__
from notebook_accel.config.installed import version_of
from notebook_accel.errors import RunInterrupted, message_of
from notebook_accel.events.model import (
    Exited,
    Failed,
    Output,
    Progress,
    Returned,
    Started,
    Stuck,
    Task,
    signal_name,
)
from notebook_accel.events.rates import Tally

MAX_WARNINGS = 50
MAX_ERROR = 4000
_WARNING = re.compile(r"\b(?:\w*Warning|GuardRail): ")
_PACKAGES = ("torch", "numpy", "transformers", "deepspeed", "torch-xla")


@functools.cache
def _machine() -> Mapping[str, str]:
    """Say what this machine runs, without importing any of it."""
    facts = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(os.cpu_count() or 0),
        "notebook_accel": __version__,
    }
    return {**facts, **{name: found for name in _PACKAGES if (found := version_of(name))}}


def _notebook() -> str:
    """Give the name of the notebook this kernel belongs to, where the server tells; else ""."""
    return Path(os.environ.get("JPY_SESSION_NAME", "")).name


@dataclass(frozen=True)
class About:
    """What was known of a run when it started; ``started`` is in seconds since 1970."""

    id: str
    function: str
    devices: str
    start_method: str
    num_ranks: int
    started: float = field(default_factory=time.time)
    config: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=lambda: dict(_machine()))
    notebook: str = field(default_factory=_notebook)

    @property
    def title(self) -> str:
        """The run in a few words."""
        return f"{self.function} on {self.devices}"


@dataclass
class RankStory:
    """How one rank fared; ``ended`` is "" while it runs.

    It began at ``from_step``; ``samples`` and ``data_wait_s`` are this run's own.
    """

    device: str = ""
    pid: int = 0
    num_threads: int = 0
    step: int = 0
    from_step: int = 0
    epoch: int = 0
    batch: int = 0
    num_batches: int | None = None
    samples: int = 0
    data_wait_s: float = 0.0
    ended: str = ""


@dataclass
class Story:
    """How a run went so far: a sink that keeps the newest of everything.

    ``ended`` is "" while it runs, then "finished", "stopped" or "failed", with the ``error`` as the
    person saw it. ``warnings`` counts the lines that warn, of all ranks; ``tasks`` are the seconds
    that long ones took. ``last`` has the first and the last value of each curve.
    """

    ranks: list[RankStory]
    warnings: dict[str, int] = field(default_factory=dict)
    tasks: dict[str, float] = field(default_factory=dict)
    last: dict[str, list[float]] = field(default_factory=dict)
    ended: str = ""
    error: str = ""
    took_s: float = 0.0
    hide: Callable[[str], str] = field(default=str, repr=False)
    _since: dict[tuple[int, str], float] = field(default_factory=dict, repr=False)
    _tallies: dict[int, Tally] = field(default_factory=dict, repr=False)

    def handle(self, event: Any) -> bool:
        """Take one event; True when it is worth telling at once."""
        if isinstance(event, Progress):
            self._progress(self._rank(event.rank), event)
        elif isinstance(event, Started):
            rank = self._rank(event.rank)
            rank.device, rank.pid, rank.num_threads = event.device, event.pid, event.num_threads
            return True
        elif isinstance(event, Output):
            self._warnings(event)
        elif isinstance(event, Returned):
            return self._end(event.rank, "stopped" if event.stopped else "returned")
        elif isinstance(event, Failed):
            raised = f"raised {event.type_name}: {event.message}".strip()
            return self._end(event.rank, self.hide(raised)[:300])
        elif isinstance(event, Stuck):
            return all(self._end(rank, "waited for ever") for rank in range(len(self.ranks)))
        elif isinstance(event, Exited):
            return self._end(event.rank, _how_it_left(event))
        elif isinstance(event, Task) and event.rank >= -1:
            self._task(event)
        return False

    def end(self, error: BaseException | None, stopped: bool, took_s: float) -> None:
        """The run is over, with what the person was told."""
        self.took_s = took_s
        self.ended = "finished"
        if stopped or isinstance(error, KeyboardInterrupt):
            self.ended = "stopped"
        elif error is not None:
            self.ended = "failed"
        if error is not None and not isinstance(error, RunInterrupted):
            self.error = self.hide(f"{type(error).__name__}: {message_of(error)}")[:MAX_ERROR]

    def _progress(self, rank: RankStory, event: Progress) -> None:
        tally = self._tallies.setdefault(event.rank, Tally())
        tally.take(event)
        rank.step, rank.epoch, rank.batch = event.step, event.epoch, event.batch
        rank.num_batches, rank.from_step = event.num_batches, tally.from_step
        rank.samples, rank.data_wait_s = tally.samples, tally.data_wait_s

    def _rank(self, number: int) -> RankStory:
        while len(self.ranks) <= number:  # other machines' ranks are told of as they come
            self.ranks.append(RankStory())
        return self.ranks[number]

    def _end(self, rank: int, how: str) -> bool:
        story = self._rank(rank)
        story.ended = story.ended or how
        return True

    def _warnings(self, event: Output) -> None:
        if event.stream != "stderr" or "Warning: " not in event.text:
            return
        for line in event.text.splitlines():
            text = self.hide(line.strip())[:500]
            if _WARNING.search(text) and (
                text in self.warnings or len(self.warnings) < MAX_WARNINGS
            ):
                self.warnings[text] = self.warnings.get(text, 0) + 1

    def _task(self, event: Task) -> None:
        now = time.monotonic()
        since = self._since.setdefault((event.rank, event.name), now)
        if event.total is not None and event.done >= event.total:
            del self._since[(event.rank, event.name)]
            if len(self.tasks) < MAX_WARNINGS or event.name in self.tasks:
                took = self.tasks.get(event.name, 0.0)
                self.tasks[event.name] = max(took, round(now - since, 3))

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain data."""
        kept = ("warnings", "tasks", "last", "ended", "error", "took_s")
        return {
            "ranks": [asdict(rank) for rank in self.ranks],
            **{name: getattr(self, name) for name in kept},
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Story:
        """Make a story of plain data; what a later version wrote on top of it is left out."""
        ranks = [RankStory(**known(RankStory, rank)) for rank in data["ranks"]]
        rest = {name: value for name, value in known(Story, data).items() if name != "ranks"}
        return Story(ranks, **rest)


def known(cls: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Give the entries of ``data`` that are fields of ``cls``."""
    names = {one.name for one in fields(cls)}
    return {name: value for name, value in data.items() if name in names}


def _how_it_left(event: Exited) -> str:
    if event.by_us:
        return "ended by the launcher"
    if event.code >= 0:
        return f"left with exit code {event.code}"
    return f"killed by {signal_name(-event.code)}"

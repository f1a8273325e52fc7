"""What an Accelerator records of a run: its trackers, from the first number to the last."""

from __future__ import annotations

import atexit
import operator
import sys
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any

from torch import Tensor

from notebook_accel.config.misuse import needs
from notebook_accel.config.project import ProjectConfiguration
from notebook_accel.errors import ConfigError, RuntimeMisuse
from notebook_accel.events import context, rails
from notebook_accel.ranks.world import World, leave, leave_at_exit
from notebook_accel.runtime.clock import Clock
from notebook_accel.runtime.live import LiveEvents
from notebook_accel.runtime.trackers.base import BlankTracker, GeneralTracker
from notebook_accel.runtime.trackers.files import JSONLTracker
from notebook_accel.runtime.tracking import filter_trackers

Trackers = list[GeneralTracker]
MAX_STEP = 2**62


class Recording:
    """The part of an Accelerator that logs."""

    log_with: list[type[GeneralTracker] | GeneralTracker]
    trackers: Trackers
    project_configuration: ProjectConfiguration
    _world: World
    _clock: Clock
    _live: LiveEvents | None
    wait_for_save: Callable[[], None]
    _num_logs = 0
    _warned = False

    def _choose_trackers(self, log_with: Any) -> None:
        self.log_with = filter_trackers(log_with, self.logging_dir)
        self.trackers = []

    @property
    def logging_dir(self) -> str | None:
        """Where trackers that write files write them."""
        return self.project_configuration.logging_dir

    def init_trackers(
        self,
        project_name: str,
        config: Mapping[str, Any] | None = None,
        init_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Open the trackers of ``log_with`` for a run of ``project_name``, and keep its ``config``.

        Without ``log_with`` the run is kept as JSON lines, if there is a ``project_dir`` or
        ``logging_dir`` to keep them in. ``init_kwargs`` holds further arguments for each tracker's
        constructor, under its name. Values of ``config`` may have any type.

        Ranks: rank 0 opens them; the others may call it.
        """
        needs(
            (Mapping, NoneType),
            config,
            "init_trackers(config=...)",
            "trackers keep settings under their names",
            "pass a dict; vars(args) is one of a Namespace, dataclasses.asdict(x) of a dataclass",
        )
        if self._world.rank != 0:
            return
        self._finish_trackers()
        wanted = self.log_with
        if not wanted and self.logging_dir is not None:
            wanted = [JSONLTracker]
        for one in wanted:
            tracker = (
                one
                if isinstance(one, GeneralTracker)
                else self._made(one, project_name, dict((init_kwargs or {}).get(one.name, {})))
            )
            tracker.start()
            self.trackers.append(tracker)
            if config is not None:
                tracker.store_init_configuration(dict(config))
        # A run that ends without end_training, or by an exception, still has its numbers.
        atexit.register(_finish, self.trackers)

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        """Give the tracker ``name``, or with ``unwrap`` the backend's own object.

        Ranks: ranks other than 0 get a tracker that takes every call and does nothing.

        Errors: ConfigError (a ValueError) for a tracker that is not open.
        """
        if self._world.rank != 0:
            return BlankTracker()
        for tracker in self.trackers:
            if tracker.name == name:
                return tracker.tracker if unwrap else tracker  # type: ignore[attr-defined]
        names = ", ".join(tracker.name for tracker in self.trackers)
        raise ConfigError(
            f"there is no tracker {name!r}",
            f"open trackers are: {names}" if names else "no tracker is open yet",
            f'write Accelerator(log_with="{name}"), then accelerator.init_trackers("project")',
        )

    def log(
        self,
        values: Mapping[str, Any],
        step: int | None = None,
        log_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Log named values of rank 0: numbers to the run's curves, everything to its trackers.

        Names are made strings: ``{3: accuracy}`` is called "3". ``step`` is an optimizer step. Left
        out, curves and files take the newest one (logs are counted where nothing prepared steps),
        and a backend that counts by itself counts. ``log_kwargs`` holds further arguments for each
        tracker's ``log``, under its name.

        Errors: RuntimeMisuse for values without names, or a step that is no whole number.
        """
        if not isinstance(values, Mapping):
            raise RuntimeMisuse(
                f"accelerator.log() got a value of type {type(values).__name__}, not a dict",
                "each value needs the name of the curve that it belongs to",
                'write accelerator.log({"loss": value})',
            )
        step = None if step is None else _whole(step)
        if self._world.rank != 0:
            return
        newest = self._clock.step or self._num_logs
        self._num_logs += 1
        named = {_written(name): value for name, value in values.items()}
        if self._live is not None:
            self._live.log(named, newest if step is None else step)
        if not self.trackers:
            self._say_that_nothing_is_open()
            return
        read = {name: _number(value) for name, value in named.items()}
        for tracker in self.trackers:
            at = newest if step is None and tracker.needs_steps else step
            tracker.log(read, step=at, **(log_kwargs or {}).get(tracker.name, {}))

    def end_training(self) -> None:
        """Finish saving, send the last numbers, and close the trackers.

        Ranks stay together until their processes end: another Accelerator may follow.

        Ranks: all ranks call it, at the end.
        """
        self.wait_for_save()
        if self._live is not None:
            self._live.finish()
        self._finish_trackers()
        if context.current() is not None:  # a launched rank leaves after what it returns
            return
        if self._world.size == 1:
            leave()
        else:  # ranks that meet anew on one port would find the old store, or none
            leave_at_exit()

    def _made(
        self, cls: type[GeneralTracker], project_name: str, kwargs: dict[str, Any]
    ) -> GeneralTracker:
        if cls.requires_logging_directory:
            kwargs = {"logging_dir": self.logging_dir, **kwargs}
        return cls(project_name, **kwargs)  # type: ignore[arg-type]

    def _finish_trackers(self) -> None:
        _finish(self.trackers)

    def _say_that_nothing_is_open(self) -> None:
        if self.log_with and not self._warned:
            self._warned = True
            rails.warn(
                "unopened-trackers",
                "accelerator.log() before init_trackers(): the trackers of log_with get nothing",
                "a tracker opens its run when it knows the project",
                'call accelerator.init_trackers("project", config) before the loop',
                *rails.line_of(sys._getframe(2)),
            )


def _written(name: Any) -> str:
    """Give a name as files and pages can hold it: without halves of characters."""
    return str(name).encode(errors="replace").decode()


def _finish(trackers: Trackers) -> None:
    while trackers:
        trackers.pop().finish()


def _whole(step: Any) -> int:
    if isinstance(step, float) and step.is_integer():
        step = int(step)
    try:
        whole = operator.index(step)
    except TypeError:
        whole = None
    if whole is None or abs(whole) > MAX_STEP:
        raise RuntimeMisuse(
            f"accelerator.log(step={step!r:.80}) names no step",
            "a curve's steps are whole numbers of 62 bits",
            "pass the number of a step, or leave it out: the newest optimizer step is taken",
        )
    return whole


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value

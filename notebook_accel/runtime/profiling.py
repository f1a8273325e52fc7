"""Where the time goes: torch's profiler around a block, one trace a rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from notebook_accel.config.handlers import Handlers, ProfileKwargs
from notebook_accel.errors import ConfigError
from notebook_accel.ranks.world import World


class Profiling:
    """The part of an Accelerator that measures."""

    _world: World
    _handlers: Handlers

    @contextmanager
    def profile(self, profile_handler: ProfileKwargs | None = None) -> Iterator[Any]:
        """Measure what the block does; gives torch's profiler.

        Settings are ``profile_handler``, else the ProfileKwargs of ``kwargs_handlers``. With their
        ``output_trace_dir``, each rank leaves ``profile_{rank}.json`` there.

        Ranks: all ranks enter it, when traces are written.
        """
        wish = profile_handler or self._handlers.find(ProfileKwargs) or ProfileKwargs()
        with build_profiler(wish, self._world.device) as profiler:
            yield profiler
        if wish.output_trace_dir is not None:
            folder = Path(wish.output_trace_dir)
            folder.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(folder / f"profile_{self._world.rank}.json"))
            self._world.wait()


def build_profiler(wish: ProfileKwargs, device: torch.device | None = None) -> Any:
    """Make torch's profiler of a wish, for a rank that computes on ``device`` (None: on any).

    Errors: ConfigError for an unknown activity.
    """
    activities = None
    if wish.activities is not None:
        activities = [_activity(name) for name in wish.activities]
    elif device is not None and device.type == "cpu":
        activities = [torch.profiler.ProfilerActivity.CPU]
    schedule = wish.schedule_option
    return torch.profiler.profile(
        activities=activities,
        schedule=None if schedule is None else torch.profiler.schedule(**schedule),
        on_trace_ready=wish.on_trace_ready,
        record_shapes=wish.record_shapes,
        profile_memory=wish.profile_memory,
        with_stack=wish.with_stack,
        with_flops=wish.with_flops,
        with_modules=wish.with_modules,
    )


def _activity(name: str) -> Any:
    known = torch.profiler.ProfilerActivity.__members__
    if name.upper() not in known:
        raise ConfigError(
            f"activities has {name!r}",
            "torch's profiler records: " + ", ".join(one.lower() for one in known),
            'write activities=["cpu", "cuda"], or leave it out',
        )
    return known[name.upper()]

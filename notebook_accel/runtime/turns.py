"""Who does it, and who goes first: functions for some ranks only, turns, and one rank's alarm."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from notebook_accel.errors import ConfigError
from notebook_accel.ranks import collectives
from notebook_accel.ranks.world import World

Function = Callable[..., Any]


class Turns:
    """What depends on which rank this is; a part of AmongRanks."""

    _world: World
    _alarm = False

    def on_main_process(self, function: Function) -> Function:
        """Decorate ``function`` to run on rank 0 only; elsewhere it gives None."""
        return self._only_if(lambda: self._world.rank == 0, function)

    def on_local_main_process(self, function: Function) -> Function:
        """Decorate ``function`` to run on the first rank of each machine only."""
        return self._only_if(lambda: self._world.placement.local_rank == 0, function)

    def on_last_process(self, function: Function) -> Function:
        """Decorate ``function`` to run on the highest rank only."""
        return self._only_if(lambda: self._world.rank == self._world.size - 1, function)

    def on_process(self, function: Any = None, process_index: int | None = None) -> Any:
        """Decorate a function to run on rank ``process_index`` only; a rank alone is every rank.

        Written ``@accelerator.on_process(process_index=1)``.

        Errors: ConfigError for a rank that is not there.
        """
        size = self._world.size
        _check_index(process_index, size, "on_process", "process_index")
        if function is None:
            return functools.partial(self.on_process, process_index=process_index)
        return self._only_if(lambda: size == 1 or self._world.rank == process_index, function)

    def on_local_process(self, function: Any = None, local_process_index: int | None = None) -> Any:
        """Decorate a function to run on rank ``local_process_index`` of each machine only.

        Written ``@accelerator.on_local_process(local_process_index=1)``.

        Errors: ConfigError for a rank that is not there.
        """
        place = self._world.placement
        _check_index(
            local_process_index, place.local_size, "on_local_process", "local_process_index"
        )
        if function is None:
            return functools.partial(self.on_local_process, local_process_index=local_process_index)
        return self._only_if(
            lambda: place.local_size == 1 or place.local_rank == local_process_index, function
        )

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Let rank 0 go through the block before the others; they are let go if it fails.

        Ranks: all ranks enter it.
        """
        with self._first(self._world.rank == 0):
            yield

    @contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """Let the first rank of each machine go through the block before the machine's others.

        Ranks: all ranks enter it.
        """
        with self._first(self._world.placement.local_rank == 0):
            yield

    def set_trigger(self) -> None:
        """Raise the alarm on this rank: every rank's next ``check_trigger`` will be True."""
        self._alarm = True

    @property
    def flag_tensor(self) -> torch.Tensor | None:
        """A one while this rank's alarm is raised, by Accelerate's name; else None."""
        return torch.tensor(1, device=self._world.device) if self._alarm else None

    def check_trigger(self) -> bool:
        """Tell whether any rank raised the alarm since the last check.

        Ranks: all ranks call it.
        """
        self._boundary()
        alarm = torch.tensor(int(self._alarm))
        self._alarm = False
        return bool(collectives.reduce(alarm, self._world, "max"))

    def _boundary(self) -> None:
        """A place that all ranks reach, at which a run may end."""

    @contextmanager
    def _first(self, is_first: bool) -> Iterator[None]:
        if not is_first:
            self._world.wait()
        try:
            yield
        finally:
            if is_first:  # also when the block failed: the others may go on, or fail the same way
                self._world.wait()

    @staticmethod
    def _only_if(is_chosen: Callable[[], bool], function: Function) -> Function:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if is_chosen() else None

        return wrapped


def _check_index(index: int | None, size: int, decorator: str, name: str) -> None:
    if index is None or index < 0 or 1 < size <= index:
        raise ConfigError(
            f"{decorator} got {name}={index!r}, and there are {size} ranks",
            "the function would run nowhere",
            f"write @accelerator.{decorator}({name}=0), or up to {size - 1}",
        )

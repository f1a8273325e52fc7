"""The block around one micro-batch: ``with accelerator.accumulate(model):``."""

from __future__ import annotations

from types import TracebackType

from torch import nn

from notebook_accel.runtime.clock import Clock
from notebook_accel.strategies.base import Engine


class Accumulation:
    """Counts one micro-batch of ``models``, and keeps gradients on their rank inside a window.

    A block that fails leaves nothing of its window behind: it will never be whole.
    """

    __slots__ = ("_clock", "_engine", "_models")

    def __init__(self, clock: Clock, engine: Engine, models: tuple[nn.Module, ...]) -> None:
        self._clock = clock
        self._engine = engine
        self._models = models

    def __enter__(self) -> None:
        clock, models = self._clock, self._models
        clock.advance(id(models[0]) if len(models) == 1 else tuple(map(id, models)))
        if not clock.sync and clock.keeps_apart:
            for model in models:
                self._engine.set_sync(model, False)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._clock.sync and self._clock.keeps_apart:
            for model in self._models:
                self._engine.set_sync(model, True)
        if kind is not None:
            self._clock.reset()
            self._clock.forget_gradients()

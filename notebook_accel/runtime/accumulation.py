"""The block around one micro-batch, ``with accelerator.accumulate(model):``, and its weight."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from notebook_accel.config.misuse import needs
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


def models_of(given: Sequence[Any]) -> tuple[nn.Module, ...]:
    """Find the models among what ``accumulate`` was given: models, or lists of them.

    A window belongs to its models: a list is made anew for each batch and cannot stand for them.
    """
    models: list[nn.Module] = []
    for one in given:
        if isinstance(one, (list, tuple)):
            models += models_of(one)
            continue
        needs(
            nn.Module,
            one,
            "accumulate()",
            "a window of micro-batches belongs to the models that are trained in it",
            "write with accelerator.accumulate(model), several models one after the other",
        )
        models.append(one)
    return tuple(models)


class Seed:
    """The gradient that a backward begins with, kept for the next: one part of a window's mean."""

    __slots__ = ("_divisor", "_value")

    def __init__(self) -> None:
        self._divisor = 0
        self._value = torch.zeros(())

    def of(self, loss: Tensor, divisor: int) -> Tensor:
        """Give ``1 / divisor`` for the backward of a 0-d ``loss``."""
        value = self._value
        if self._divisor != divisor or value.dtype is not loss.dtype or value.device != loss.device:
            with torch.inference_mode(False):
                value = torch.ones((), dtype=loss.dtype, device=loss.device) / divisor
            self._divisor, self._value = divisor, value
        return value

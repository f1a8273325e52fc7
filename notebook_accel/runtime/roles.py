"""Accelerate's classes of prepared optimizers and schedulers, for code that makes them itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from notebook_accel.config.wishes import SingleDevice
from notebook_accel.errors import ConfigError
from notebook_accel.runtime.faces import PartialState
from notebook_accel.runtime.gradient_state import GradientState
from notebook_accel.runtime.optimizer import PreparedOptimizer, PreparedScheduler
from notebook_accel.strategies.base import Engine
from notebook_accel.strategies.precision import Precision


class _Role(type):
    """Takes objects of the class ``of`` for instances."""

    of: type

    def __instancecheck__(cls, one: Any) -> bool:
        return isinstance(one, cls.of)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls.of)


class AcceleratedOptimizer(metaclass=_Role):
    """An optimizer that steps when the newest Accelerator's window closes; ``prepare`` makes them.

    Made here it knows windows, and nothing of ranks or loss scales.

    Errors: ConfigError for a ``scaler``.
    """

    of: ClassVar[type] = PreparedOptimizer

    def __new__(  # type: ignore[misc]
        cls, optimizer: Optimizer, device_placement: bool = True, scaler: Any = None
    ) -> PreparedOptimizer:
        """Make it."""
        if scaler is not None:
            raise ConfigError(
                "AcceleratedOptimizer(scaler=...) outside of an Accelerator",
                "the loss scale moves once an iteration, which only an Accelerator knows",
                'write Accelerator(mixed_precision="fp16").prepare(optimizer)',
            )
        if isinstance(optimizer, PreparedOptimizer):
            return optimizer
        world = PartialState()._world
        clock = GradientState()._clock
        engine = Engine(SingleDevice(), world, Precision("no", world.device))
        return PreparedOptimizer(optimizer, engine, clock, clock.stepped)


class AcceleratedScheduler(metaclass=_Role):
    """A scheduler that moves when its optimizers step; ``prepare`` makes them.

    It moves once a rank at each update, or once with ``split_batches``; whenever it is told to,
    without ``step_with_optimizer``.
    """

    of: ClassVar[type] = PreparedScheduler

    def __new__(  # type: ignore[misc]
        cls,
        scheduler: LRScheduler,
        optimizers: Any,
        step_with_optimizer: bool = True,
        split_batches: bool = False,
    ) -> PreparedScheduler:
        """Make it."""
        listed = optimizers if isinstance(optimizers, Sequence) else [optimizers]
        bound: list[Any] = [AcceleratedOptimizer(one) for one in listed]
        per_step = 1 if split_batches else PartialState().num_processes
        clock = GradientState()._clock
        return PreparedScheduler(scheduler, bound, clock, per_step, step_with_optimizer)

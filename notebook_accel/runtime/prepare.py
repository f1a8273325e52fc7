"""What ``prepare`` does: sort what it got, wrap it jointly, dress it, put it back in order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from notebook_accel.config.fields import check_switches
from notebook_accel.config.kinds import RNGType
from notebook_accel.config.loading import DataLoaderConfiguration
from notebook_accel.data.loader import Passes, PreparedLoader, cannot_travel
from notebook_accel.data.prepare import prepare_loader
from notebook_accel.events import context, tasks
from notebook_accel.runtime.clock import Clock
from notebook_accel.runtime.optimizer import PreparedOptimizer, PreparedScheduler
from notebook_accel.strategies.base import Engine, Parts
from notebook_accel.strategies.dummies import DummyScheduler


class Wardrobe:
    """Dresses objects for one Accelerator, and remembers what it dressed.

    A scheduler moves at each optimizer step once for each reader, with ``schedule_in_updates``
    once; ``loading`` and ``rng_types`` say how loaders read.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        passes: Passes,
        after_step: Callable[[int], None],
        step_scheduler_with_optimizer: bool,
        schedule_in_updates: bool,
        loading: DataLoaderConfiguration,
        rng_types: list[RNGType],
    ) -> None:
        self._engine = engine
        self._loading = loading
        self._rng_types = tuple(one for one in rng_types if one != RNGType.GENERATOR)
        self._clock = clock
        clock.forget_gradients = self.forget_gradients
        clock.keeps_apart &= engine.layout.averages
        self._passes = passes
        self._after_step = after_step
        check_switches(
            "Accelerator",
            step_scheduler_with_optimizer=step_scheduler_with_optimizer,
            schedule_in_updates=schedule_in_updates,
        )
        self._with_optimizer = step_scheduler_with_optimizer
        self._schedule_steps = 1 if schedule_in_updates else engine.layout.data_size
        self.clear()

    def clear(self) -> None:
        """Forget everything, so that its memory can be freed."""
        self.models: list[nn.Module] = []
        self.optimizers: list[PreparedOptimizer] = []
        self.schedulers: list[PreparedScheduler] = []
        self.loaders: list[PreparedLoader] = []

    def forget_gradients(self) -> None:
        """Clear gradients of a window that will never be whole."""
        for optimizer in self.optimizers:
            optimizer.abandon()
        for model in self.models:
            self._engine.forget_pending(model)

    def dress(self, objects: tuple[Any, ...], placement: list[bool]) -> list[Any]:
        """Give the dressed objects, in the order given; unknown ones as they are.

        Ranks: all ranks call it with the same kinds of objects in the same order.
        """
        dressed: dict[int, Any] = {}
        todo = [
            (_bare(one), put)
            for one, put in zip(objects, placement, strict=True)
            if not self._known(one)
        ]
        for put in (True, False):
            models = [one for one, p in todo if isinstance(one, nn.Module) and p is put]
            optimizers = [one for one, p in todo if isinstance(one, Optimizer) and p is put]
            names = ", ".join(type(model).__name__ for model in models)
            with tasks.task(f"preparing {names}") if names else nullcontext():
                parts = self._engine.wrap(Parts(tuple(models), tuple(optimizers)), put)
            for model in parts.models:
                vars(model)["_is_accelerate_prepared"] = True  # other libraries ask by this name
            self.models += parts.models
            dressed.update(zip(map(id, models), parts.models, strict=True))
            for given, inner in zip(optimizers, parts.optimizers, strict=True):
                dressed[id(given)] = self._optimizer(inner)
        for one, put in todo:
            if isinstance(one, DataLoader):
                dressed[id(one)] = self._loader(one, put)
        for one, _ in todo:
            if isinstance(one, LRScheduler):  # last: it looks for its dressed optimizer
                dressed[id(one)] = self._scheduler(one)
        return [one if self._known(one) else dressed.get(id(_bare(one)), one) for one in objects]

    def _known(self, one: Any) -> bool:
        mine = (*self.models, *self.optimizers, *self.schedulers, *self.loaders)
        return any(one is other for other in mine)

    def _optimizer(self, inner: Optimizer) -> PreparedOptimizer:
        optimizer = PreparedOptimizer(inner, self._engine, self._clock, self._after_step)
        self.optimizers.append(optimizer)
        return optimizer

    def _scheduler(self, inner: LRScheduler) -> PreparedScheduler:
        own = _bare(getattr(inner, "optimizer", None))
        bound = [one for one in self.optimizers if own is one.inner]
        steps = self._schedule_steps
        if isinstance(inner, DummyScheduler):  # its length is counted in updates
            inner, steps = self._engine.schedule(inner), 1
        scheduler = PreparedScheduler(
            inner, bound or list(self.optimizers), self._clock, steps, self._with_optimizer
        )
        self.schedulers.append(scheduler)
        return scheduler

    def _loader(self, source: DataLoader[Any], put: bool) -> PreparedLoader:
        layout = self._engine.layout
        loader = prepare_loader(
            source,
            self._engine.world,
            layout.data_rank,
            layout.data_size,
            put_on_device=put,
            passes=self._passes,
            loading=self._loading,
            rng_types=self._rng_types,
            cut=self._engine.cutter(),
        )
        self.loaders.append(loader)
        return loader


def _bare(one: Any) -> Any:
    """What another Accelerator (of a cell run before) had dressed, undressed."""
    if isinstance(one, (PreparedOptimizer, PreparedScheduler)):
        return one.inner
    return one.source if isinstance(one, PreparedLoader) else one


def _refuse_loader(loader: PreparedLoader) -> Any:
    raise cannot_travel("DataLoader")


# What travels back to the kernel in place of what a training loop holds.
context.encoders[PreparedOptimizer] = lambda optimizer: optimizer.inner
context.encoders[PreparedScheduler] = lambda scheduler: scheduler.inner
context.encoders[PreparedLoader] = _refuse_loader
context.encoders[DistributedDataParallel] = lambda model: model.module

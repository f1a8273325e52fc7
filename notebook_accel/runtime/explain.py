"""What prepare did, in words and numbers a person can check."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch import nn

from notebook_accel.config.words import counted
from notebook_accel.data.loader import PreparedLoader
from notebook_accel.ranks.world import World
from notebook_accel.runtime.clock import Clock
from notebook_accel.runtime.optimizer import PreparedOptimizer, PreparedScheduler
from notebook_accel.runtime.prepare import Wardrobe
from notebook_accel.strategies.base import Engine
from notebook_accel.strategies.compiled import is_compiled_module, uncompiled


class Explaining:
    """The part of an Accelerator that says what it did."""

    _world: World
    _engine: Engine
    _clock: Clock
    _wardrobe: Wardrobe
    print: Any

    def explain(self) -> None:
        """Print, once a run, what became of each prepared object and what batch an update sees.

        Rates scaled for that batch are given beside each optimizer's: linearly, and by the square
        root.

        Source: Goyal et al. 2017, "Accurate, large minibatch SGD", section 2; Krizhevsky 2014, "One
        weird trick", section 5.
        """
        self.print("\n".join(self._explanation()))

    def _explanation(self) -> Iterator[str]:
        engine, wardrobe, steps = self._engine, self._wardrobe, self._clock.num_steps
        ranks, place = self._world.size, self._world.placement
        yield (
            f"{counted(ranks, 'rank')} on {self._world.device.type}"
            f"{f' ({place.comm})' if ranks > 1 else ''}, strategy {engine.wish.name}, "
            f"mixed precision {engine.precision.name}, accumulation {steps}"
        )
        if not (wardrobe.models or wardrobe.optimizers or wardrobe.loaders):
            yield "nothing is prepared yet: model, optimizer, loader = accelerator.prepare(...)"
        for model in wardrobe.models:
            yield f"model      {_model(model, engine, _done(engine, model))}"
        for optimizer in wardrobe.optimizers:
            yield f"optimizer  {_optimizer(optimizer)}"
        for scheduler in wardrobe.schedulers:
            yield f"scheduler  {_scheduler(scheduler)}"
        for loader in wardrobe.loaders:
            yield f"loader     {_loader(loader, engine.layout.data_size)}"
        if wardrobe.loaders:
            readers = engine.layout.data_size
            rows = wardrobe.loaders[0].total_batch_size // readers
            yield from _arithmetic(rows, readers, steps, wardrobe.optimizers)


def _done(engine: Engine, model: nn.Module) -> str:
    numbers = engine.precision.describe(engine.unwrap(model))
    return "; ".join(filter(None, [engine.describe(model), numbers]))


def _model(model: nn.Module, engine: Engine, done: str) -> str:
    own = engine.unwrap(model)
    total = sum(engine.numel(one) for one in own.parameters())
    trained = sum(engine.numel(one) for one in own.parameters() if one.requires_grad)
    text = f"{type(uncompiled(own)).__name__}: {counted(total, 'parameter')}"
    if trained != total:
        text += f", {trained:,} of them trained"
    if done:
        text += f"; {done}"
    elif not trained:
        text += "; not wrapped: there is nothing to train"
    return text + ("; compiled" if is_compiled_module(model) or is_compiled_module(own) else "")


def _optimizer(optimizer: PreparedOptimizer) -> str:
    rates = ", ".join(f"{rate:g}" for rate in _rates(optimizer))
    return f"{type(optimizer.inner).__name__}: learning rate {rates or 'its own'}"


def _rates(optimizer: PreparedOptimizer) -> list[float]:
    """What the person wrote, before any schedule."""
    groups = [group for group in optimizer.param_groups if "lr" in group]
    return [float(group.get("initial_lr", group["lr"])) for group in groups]


def _scheduler(scheduler: PreparedScheduler) -> str:
    name = type(scheduler.inner).__name__
    if not scheduler.follows_optimizer:
        return f"{name}: steps whenever it is told to"
    return f"{name}: moves {counted(scheduler.per_step, 'step')} at each update"


def _loader(loader: PreparedLoader, readers: int) -> str:
    parts = []
    try:
        parts.append(counted(len(loader.source.dataset), "sample"))  # type: ignore[arg-type]
    except TypeError:  # a stream that does not know
        parts.append("samples without end in sight")
    try:
        parts.append(
            f"{counted(len(loader), 'batch', 'batches')} {'a rank' if readers > 1 else ''}"
        )
    except TypeError:
        pass
    return ", ".join(part.strip() for part in parts)


def _arithmetic(
    rows: int, readers: int, steps: int, optimizers: list[PreparedOptimizer]
) -> Iterator[str]:
    effective = rows * readers * steps
    yield (
        f"batch      {rows} per device x {counted(readers, 'process', 'processes')} "
        f"x {steps} accumulated = {effective} an update"
    )
    factor = effective / rows
    if factor == 1:
        return
    for rate in sorted({rate for one in optimizers for rate in _rates(one)}):
        linear, root = rate * factor, rate * math.sqrt(factor)
        yield (
            f"rate       {rate:g} found with a batch of {rows} would be {linear:.4g} scaled "
            f"linearly, {root:.4g} by the square root"
        )

"""What one rank of a layout that is only played has: printed once, after its first update.

All of it is counted on this rank's own tensors, which are as large as in a real run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch.optim import Optimizer

from notebook_accel.config.words import counted, size
from notebook_accel.runtime.clock import Clock
from notebook_accel.runtime.optimizer import PreparedOptimizer
from notebook_accel.runtime.prepare import Wardrobe
from notebook_accel.strategies.base import Engine
from notebook_accel.strategies.held import held

_RULE = "─" * 72


def tell_once(optimizer: PreparedOptimizer, engine: Engine, every: Wardrobe, clock: Clock) -> None:
    """Print what this rank has, as soon as ``optimizer`` has made its first update."""

    def tell(inner: Optimizer, args: Any, kwargs: Any) -> None:
        handle.remove()
        print("\n".join(lines(engine, every, clock)))

    handle = optimizer.inner.register_step_post_hook(tell)


def lines(engine: Engine, every: Wardrobe, clock: Clock) -> Iterator[str]:
    """Say where this rank is, what it holds, and what an update sees."""
    world = engine.world
    yield _RULE
    yield f"rank {world.rank} of {world.size} played, after its first update"
    yield f"  mesh        {mesh_words(_axes(engine))}"
    for model in every.models:
        own = engine.unwrap(model)
        name = next(
            one.__name__ for one in type(own).__mro__ if not one.__name__.startswith("FSDP")
        )
        yield f"  model       {name}: {engine.describe(model) or 'a whole copy on each rank'}"
    here = held(map(engine.unwrap, every.models), [one.inner for one in every.optimizers])
    yield f"  parameters  {size(here.parameters)} of {size(here.whole)}"
    yield f"  gradients   {size(here.gradients)}"
    yield f"  optimizer   {size(here.optimizer)}"
    together = here.parameters + here.gradients + here.optimizer + here.buffers
    yield f"  together    {size(together)} on this rank, and activations on top"
    readers, steps = engine.layout.data_size, clock.num_steps
    for loader in every.loaders[:1]:
        rows = loader.total_batch_size // readers
        yield (
            f"  batch       {rows} a reader x {counted(readers, 'reader')} x {steps} accumulated = "
            f"{rows * readers * steps:,} samples an update"
        )
        try:
            yield f"  pass        {counted(len(loader), 'batch', 'batches')} of this reader"
        except TypeError:  # a stream that does not know
            pass
    yield _RULE


def mesh_words(axes: dict[str, int]) -> str:
    """Write the axes of a layout: "dp_replicate=2 x dp_shard=8 x tp=4 = 64 ranks"."""
    shown = {name: num for name, num in axes.items() if num > 1}
    product = " x ".join(f"{name}={num}" for name, num in shown.items())
    return f"{product} = {math.prod(axes.values())} ranks"


def _axes(engine: Engine) -> dict[str, int]:
    mesh = engine.mesh
    if mesh is None:
        return {"dp_replicate": engine.world.size}
    return dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True))

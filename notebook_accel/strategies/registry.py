"""From a wish to a machine: one line a strategy; outsiders add theirs by an entry point."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

from notebook_accel.config.deepspeed import DeepSpeed
from notebook_accel.config.megatron import Megatron
from notebook_accel.config.sequence import SequenceParallel
from notebook_accel.config.wishes import (
    DDP,
    FSDP,
    Pipeline,
    SingleDevice,
    Strategy,
    TensorParallel,
)
from notebook_accel.errors import ConfigError
from notebook_accel.ranks.world import World
from notebook_accel.strategies.base import Engine
from notebook_accel.strategies.ddp import DDPEngine
from notebook_accel.strategies.precision import Precision

# An entry point of this group names a tuple (wish class, engine class).
ENTRY_POINT_GROUP = "notebook_accel.strategies"

Maker = Callable[..., Engine]


def build(wish: Strategy | None, world: World, precision: Precision) -> Engine:
    """Make the engine for ``wish``; None is one device for one rank and DDP for several.

    Errors: ConfigError for a wish that nobody knows, or that cannot be in this world.
    """
    if wish is None:
        wish = SingleDevice() if world.size == 1 else DDP()
    maker = BUILT_IN.get(type(wish)) or outsiders().get(type(wish))
    if maker is None:
        names = sorted(one.__name__ for one in [*BUILT_IN, *outsiders()])
        raise ConfigError(
            f"strategy={wish!r} has no engine",
            "known wishes are: " + ", ".join(names),
            f"pass one of them, or register an entry point in the group {ENTRY_POINT_GROUP!r}",
        )
    wish.check_fit(world.placement, precision.name)
    return maker(wish, world, precision)


def outsiders() -> dict[type[Strategy], Maker]:
    """Give the wishes of other packages, with what makes their engines.

    Errors: ConfigError naming a package that does not work.
    """
    return dict(map(_loaded, entry_points(group=ENTRY_POINT_GROUP)))


def _loaded(entry: EntryPoint) -> tuple[type[Strategy], Maker]:
    try:
        pair = entry.load()
    except Exception as reason:  # whatever a package of somebody else may raise
        raise _unusable(entry, f"{type(reason).__name__}: {reason}") from reason
    match pair:
        case (type() as wish, maker) if issubclass(wish, Strategy) and callable(maker):
            return wish, maker
    raise _unusable(entry, f"it names {pair!r}")


def _unusable(entry: EntryPoint, why: str) -> ConfigError:
    package = entry.name if entry.dist is None else entry.dist.name
    return ConfigError(
        f"the strategy {entry.name} ({entry.value}) cannot be used: {why}",
        f"an entry point of the group {ENTRY_POINT_GROUP!r} names a pair: the class of a wish, and "
        "what makes an engine of (wish, world, precision)",
        f"mend the package {package}, or remove it: pip uninstall {package}",
    )


def _ddp(wish: DDP, world: World, precision: Precision) -> Engine:
    if world.size == 1:  # nobody to average with
        return Engine(wish, world, precision)
    return DDPEngine(wish, world, precision)


def _fsdp(wish: FSDP, world: World, precision: Precision) -> Engine:
    if world.size == 1:  # nobody to share with
        return Engine(wish, world, precision)
    from notebook_accel.strategies.fsdp import FSDPEngine  # imports much: only who shards pays

    return FSDPEngine(wish, world, precision)


def _tensor(wish: TensorParallel, world: World, precision: Precision) -> Engine:
    if wish.size == 1:
        return _fsdp(wish.data, world, precision)
    from notebook_accel.strategies.tensor import TensorEngine

    return TensorEngine(wish, world, precision)


def _pipeline(wish: Pipeline, world: World, precision: Precision) -> Engine:
    if wish.num_ranks == 1:  # nothing is cut
        return build(wish.inside if world.size > 1 else None, world, precision)
    from notebook_accel.strategies.pipeline import PipelineEngine

    return PipelineEngine(wish, world, precision)


def _sequence(wish: SequenceParallel, world: World, precision: Precision) -> Engine:
    if wish.size == 1:  # nothing is cut
        return build(wish.data, world, precision)
    from notebook_accel.strategies.sequence import sequence_engine

    return sequence_engine(wish, world, precision)


def _deepspeed(wish: DeepSpeed, world: World, precision: Precision) -> Engine:
    from notebook_accel.strategies.zero import ZeroEngine  # imports DeepSpeed

    return ZeroEngine(wish, world, precision)


def _megatron(wish: Megatron, world: World, precision: Precision) -> Engine:
    from notebook_accel.strategies.megatron import serve

    served = wish.engine(world.size)
    if not wish.runs_on_core:
        return serve(build(served, world, precision), wish)
    from notebook_accel.strategies.megatron_core import CoreEngine

    return serve(CoreEngine(wish, world, precision), wish)


BUILT_IN: dict[type[Strategy], Maker] = {
    SingleDevice: Engine,
    DeepSpeed: _deepspeed,
    DDP: _ddp,
    FSDP: _fsdp,
    TensorParallel: _tensor,
    Pipeline: _pipeline,
    Megatron: _megatron,
    SequenceParallel: _sequence,
}

"""Megatron's degrees, served by the engines that are here."""

from __future__ import annotations

from notebook_accel.config.installed import is_installed
from notebook_accel.config.kinds import DistributedType
from notebook_accel.config.megatron import Megatron
from notebook_accel.strategies.base import Engine


def serve(engine: Engine, wish: Megatron) -> Engine:
    """Let ``engine`` be known by Megatron's name, clip as ``wish`` says, and say what serves it."""
    engine.kind = DistributedType.MEGATRON_LM
    engine.clips_at = wish.gradient_clipping
    if engine.world.rank == 0:
        print(f"note: {told(wish, engine.world.size)}")
    return engine


def told(wish: Megatron, num_ranks: int) -> str:
    """Say in a line which engine serves the degrees of ``wish``."""
    degrees = f"tp_degree={wish.tp_degree} x pp_degree={wish.pp_degree}"
    if wish.context_parallel_size > 1:
        degrees += f" x context_parallel_size={wish.context_parallel_size}"
    if wish.layers == "core":
        return f"{degrees} run on megatron-core's own layers, of which the model is made"
    there = "megatron-core is not installed, and not needed"
    if is_installed("megatron"):
        there = 'megatron-core trains models made of its own layers (layers="core")'
    name = wish.engine(num_ranks).name
    return f"{degrees} run on torch's own engines ({name}): {there}"

"""Ranks laid out along axes: copies of the model, shards of each, layers divided among neighbors.

8 ranks, replicas=2, tp=2        dp_replicate 0          dp_replicate 1
                                 dp_shard 0   1          dp_shard 0   1
                                 tp     0 1   2 3        tp     4 5   6 7
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from notebook_accel.config.degrees import check_fills
from notebook_accel.errors import ConfigError
from notebook_accel.ranks.world import World, when_left


def mesh_of(world: World, replicas: int = 1, tp: int = 1, pp: int = 1) -> DeviceMesh:
    """Lay all ranks out; axes of one rank are left out, but for "dp_shard".

    Ranks: all ranks call it.
    Errors: ConfigError where the axes do not multiply to the world.
    """
    known = replicas * tp * pp
    check_fills(_named({"replicas": replicas, "tensor parallel size": tp}), known, world.size)
    axes = {"dp_replicate": replicas, "dp_shard": world.size // known, "tp": tp, "pp": pp}
    kept = {name: size for name, size in axes.items() if size > 1 or name == "dp_shard"}
    return _mesh(world, tuple(kept.items()), id(dist.group.WORLD))


def uneven_heads(what: str, num: int, size: int, axis: str) -> ConfigError:
    """Explain that ``num`` heads do not divide over ``size`` ranks of an axis.

    That is "tensor" or "sequence"; ``what`` has the heads.
    """
    otherwise = ', or write SequenceParallel(exchange="keys"), which does not divide heads'
    return ConfigError(
        f"{what}, to be divided over {size} ranks",
        "a head is computed by one rank, and ranks must have equally many",
        f"choose a {axis} parallel size that divides {num}{otherwise * (axis == 'sequence')}",
    )


def _named(sizes: Mapping[str, int]) -> str:
    return " x ".join(f"{name}={size}" for name, size in sizes.items() if size > 1)


def mesh_of_stages(world: World, replicas: int, pp: int, tp: int = 1) -> DeviceMesh:
    """Lay all ranks out for a pipeline: its stages first, then the ranks that share one stage.

    Ranks that compute a layer together are neighbors, then those of a pipeline. Axes: "pp",
    "dp_replicate", "tp", "dp_shard", without those of one rank; what "tp" leaves is sharded.

    Ranks: all ranks call it.
    Errors: ConfigError where the axes do not multiply to the world.
    """
    known = {"replicas": replicas, "pipeline ranks": pp, "tensor parallel size": tp}
    group = math.prod(known.values())
    check_fills(_named(known), group, world.size)
    return _mesh_of_stages(world, (replicas, world.size // group, pp, tp), id(dist.group.WORLD))


def data_axes(mesh: DeviceMesh) -> DeviceMesh:
    """Give the axes along which ranks read different data; the last one shards."""
    names = tuple(name for name in mesh.mesh_dim_names or () if name.startswith("dp_"))
    return mesh[names]


def num_readers(mesh: DeviceMesh) -> int:
    """How many readers of data there are."""
    return math.prod(data_axes(mesh).shape)


def sequence_mesh(world: World, size: int, tp: int, axis: str, replicas: int) -> DeviceMesh:
    """Lay all ranks out with ``size`` neighbors along ``axis``, which share sequences.

    Ranks: all ranks call it.
    """
    readers = world.size // (size * tp)
    copies = replicas if readers % replicas == 0 else 1
    axes = {"dp_replicate": copies, "dp_shard": readers // copies, axis: size, "tp": tp}
    kept = {name: num for name, num in axes.items() if num > 1 or name == axis}
    return _mesh(world, tuple(kept.items()), id(dist.group.WORLD))


@functools.cache  # each new mesh would make process groups of its own
def _mesh(world: World, axes: tuple[tuple[str, int], ...], group: int) -> DeviceMesh:
    when_left(_mesh.cache_clear)
    names, shape = zip(*axes, strict=True)
    mesh = init_device_mesh(world.device.type, shape, mesh_dim_names=names)
    world.wait()  # a rank that ended now would break connections that others still make
    return mesh


@functools.cache
def _mesh_of_stages(world: World, sizes: tuple[int, int, int, int], group: int) -> DeviceMesh:
    when_left(_mesh_of_stages.cache_clear)
    ranks = torch.arange(world.size).view(sizes).permute(2, 0, 3, 1)
    names = ("pp", "dp_replicate", "tp", "dp_shard")
    kept = [name for name, size in zip(names, ranks.shape, strict=True) if size > 1]
    shape = [size for size in ranks.shape if size > 1]
    mesh = DeviceMesh(world.device.type, ranks.reshape(shape), mesh_dim_names=tuple(kept))
    world.wait()
    return mesh

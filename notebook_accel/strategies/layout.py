"""Ranks laid out along axes: copies of the model, shards of each, layers divided among neighbors.

8 ranks, replicas=2, tp=2        dp_replicate 0          dp_replicate 1
                                 dp_shard 0   1          dp_shard 0   1
                                 tp     0 1   2 3        tp     4 5   6 7
"""

from __future__ import annotations

import functools
import math

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from notebook_accel.errors import ConfigError
from notebook_accel.ranks.world import World


def mesh_of(world: World, replicas: int = 1, tp: int = 1, pp: int = 1) -> DeviceMesh:
    """Lay all ranks out; axes of one rank are left out, but for "dp_shard".

    Ranks: all ranks call it.
    Errors: ConfigError where the axes do not multiply to the world.
    """
    known = replicas * tp * pp
    if world.size % known:
        asked = [f"replicas={replicas}"] * (replicas > 1) + [f"tensor parallel size={tp}"] * (
            tp > 1
        )
        raise ConfigError(
            f"{' x '.join(asked)} in a world of {world.size} ranks",
            f"groups of {known} ranks do not fill it",
            f"launch a multiple of {known} processes, or ask for divisors of {world.size}",
        )
    axes = {"dp_replicate": replicas, "dp_shard": world.size // known, "tp": tp, "pp": pp}
    kept = {name: size for name, size in axes.items() if size > 1 or name == "dp_shard"}
    return _mesh(world, tuple(kept.items()), id(dist.group.WORLD))


def data_axes(mesh: DeviceMesh) -> DeviceMesh:
    """Give the axes along which ranks read different data; the last one shards."""
    names = tuple(name for name in mesh.mesh_dim_names or () if name.startswith("dp_"))
    return mesh[names]


def num_readers(mesh: DeviceMesh) -> int:
    """How many readers of data there are."""
    return math.prod(data_axes(mesh).shape)


@functools.cache  # each new mesh would make process groups of its own
def _mesh(world: World, axes: tuple[tuple[str, int], ...], group: int) -> DeviceMesh:
    names, shape = zip(*axes, strict=True)
    mesh = init_device_mesh(world.device.type, shape, mesh_dim_names=names)
    world.wait()  # a rank that ended now would break connections that others still make
    return mesh

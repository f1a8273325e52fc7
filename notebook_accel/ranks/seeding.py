"""Random numbers: the same on every rank where they must be, apart where they should be."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import torch

from notebook_accel.config.loading import GENERATOR, checked_rng_types
from notebook_accel.ranks.collectives import broadcast
from notebook_accel.ranks.place import placement_here
from notebook_accel.ranks.world import World


def set_seed(seed: int, device_specific: bool = False, deterministic: bool = False) -> None:
    """Seed Python, numpy (if installed) and torch on all its devices.

    ``device_specific`` adds the rank, so that ranks draw different numbers; ``deterministic``
    makes torch refuse algorithms that vary from run to run.
    """
    if device_specific:
        seed += placement_here().rank
    random.seed(seed)
    try:
        import numpy
    except ImportError:  # optional: nothing of it to seed
        pass
    else:
        numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)


def draw_shared_seed(world: World) -> int:
    """Draw from the global generator the number that a plain RandomSampler would draw now.

    Ranks: all ranks call it and each draws; all get rank 0's number.
    """
    number = torch.empty((), dtype=torch.int64).random_()
    return int(broadcast(number, world).item())


def synchronize_rng_states(
    rng_types: Iterable[Any], generator: torch.Generator | None = None, world: World | None = None
) -> None:
    """Set generators of this rank to where rank 0's stand: "torch", "cuda", ..., "generator".

    "generator" is the one given. ``world`` is this process's own, if it is left out.

    Ranks: all ranks call it, with the same ``rng_types``.
    Errors: ConfigError for a kind of random numbers that there is not.
    """
    world = World.join() if world is None else world
    for kind in checked_rng_types(rng_types):
        if kind == "torch":
            torch.set_rng_state(broadcast(torch.get_rng_state(), world))
        elif kind == GENERATOR:
            if generator is not None:
                generator.set_state(broadcast(generator.get_state(), world))
        else:
            device = torch.get_device_module(kind)
            device.set_rng_state(broadcast(device.get_rng_state(), world))

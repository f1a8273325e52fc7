"""Random numbers: the same on every rank where they must be, apart where they should be."""

from __future__ import annotations

import random
from collections.abc import Iterable

import torch

from notebook_accel.config.kinds import RNGType
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


def share_generator(generator: torch.Generator, world: World) -> None:
    """Set this rank's ``generator`` to where rank 0's stands.

    Ranks: all ranks call it.
    """
    generator.set_state(broadcast(generator.get_state(), world))


def share_rng_states(kinds: Iterable[RNGType], world: World) -> None:
    """Set this rank's global generators to where rank 0's stand: torch's, or its device's.

    Ranks: all ranks call it.
    """
    for kind in kinds:
        if kind == RNGType.TORCH:
            share_generator(torch.default_generator, world)
        elif kind.value == world.device.type:
            module = torch.get_device_module(world.device)
            state = module.get_rng_state(world.device)
            module.set_rng_state(broadcast(state, world), world.device)

"""Accelerate's ``utils.random`` module."""

from notebook_accel.compat.doors import door as _door
from notebook_accel.ranks.seeding import set_seed
from notebook_accel.runtime.operations import synchronize_rng_state, synchronize_rng_states

__all__ = [
    "set_seed",
    "synchronize_rng_state",
    "synchronize_rng_states",
]

__getattr__ = _door(__name__)

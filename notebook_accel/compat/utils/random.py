"""Accelerate's ``utils.random`` module."""

from notebook_accel.compat.doors import door as _door
from notebook_accel.ranks.seeding import set_seed

__getattr__ = _door(__name__)

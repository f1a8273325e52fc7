"""Accelerate's ``optimizer`` module."""

from notebook_accel.compat.doors import door as _door
from notebook_accel.runtime.roles import AcceleratedOptimizer

__all__ = [
    "AcceleratedOptimizer",
]

__getattr__ = _door(__name__)

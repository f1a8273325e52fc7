"""Accelerate's ``scheduler`` module."""

from notebook_accel.compat.doors import door as _door
from notebook_accel.runtime.roles import AcceleratedScheduler

__all__ = [
    "AcceleratedScheduler",
]

__getattr__ = _door(__name__)

"""Accelerate's ``accelerator`` module."""

from notebook_accel.compat.doors import door as _door
from notebook_accel.runtime.accelerator import Accelerator

__all__ = [
    "Accelerator",
]

__getattr__ = _door(__name__)

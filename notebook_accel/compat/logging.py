"""Accelerate's ``logging`` module."""

from notebook_accel.compat.doors import door as _door
from notebook_accel.runtime.logs import MultiProcessAdapter, get_logger

__all__ = [
    "MultiProcessAdapter",
    "get_logger",
]

__getattr__ = _door(__name__)

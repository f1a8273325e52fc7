"""Accelerate's ``inference`` module."""

from notebook_accel.compat.doors import door as _door
from notebook_accel.runtime.pieces import prepare_pippy

__all__ = [
    "prepare_pippy",
]

__getattr__ = _door(__name__)

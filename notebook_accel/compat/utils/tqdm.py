"""Accelerate's ``utils.tqdm`` module."""

from notebook_accel.compat.doors import door as _door
from notebook_accel.runtime.bars import tqdm

__all__ = [
    "tqdm",
]

__getattr__ = _door(__name__)

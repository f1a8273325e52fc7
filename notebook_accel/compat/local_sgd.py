"""Accelerate's ``local_sgd`` module."""

from notebook_accel.compat.doors import door as _door
from notebook_accel.runtime.local_sgd import LocalSGD

__all__ = [
    "LocalSGD",
]

__getattr__ = _door(__name__)

"""Accelerate's ``launchers`` module."""

from notebook_accel.compat.doors import door as _door
from notebook_accel.launch.launcher import debug_launcher, notebook_launcher

__all__ = [
    "debug_launcher",
    "notebook_launcher",
]

__getattr__ = _door(__name__)

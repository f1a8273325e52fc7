"""Accelerate's ``parallelism_config`` module."""

from notebook_accel.compat.doors import door as _door
from notebook_accel.config.parallelism import ParallelismConfig as ParallelismConfig

__getattr__ = _door(__name__)

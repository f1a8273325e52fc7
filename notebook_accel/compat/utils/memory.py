"""Accelerate's ``utils.memory`` module."""

from notebook_accel.compat.doors import door as _door
from notebook_accel.runtime.memory import (
    clear_device_cache,
    find_executable_batch_size,
    release_memory,
    should_reduce_batch_size,
)

__all__ = [
    "clear_device_cache",
    "find_executable_batch_size",
    "release_memory",
    "should_reduce_batch_size",
]

__getattr__ = _door(__name__)

"""Accelerate's ``utils.versions`` module."""

from notebook_accel.compat.doors import door as _door
from notebook_accel.config.installed import compare_versions, is_torch_version

__all__ = [
    "compare_versions",
    "is_torch_version",
]

__getattr__ = _door(__name__)

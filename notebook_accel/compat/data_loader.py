"""Accelerate's ``data_loader`` module."""

from notebook_accel.compat.doors import door as _door
from notebook_accel.data.loader import PreparedLoader as DataLoaderShard

__getattr__ = _door(__name__)

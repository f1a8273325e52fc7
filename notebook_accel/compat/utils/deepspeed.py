"""Accelerate's ``utils.deepspeed`` module: its names come later, and say so."""

from notebook_accel.compat.doors import door as _door

__getattr__ = _door(__name__)

"""Accelerate's ``checkpointing`` module: files of single objects; a whole run is ``save_state``."""

from notebook_accel.compat.doors import door as _door
from notebook_accel.runtime.modules import load_custom_state, save_custom_state

__all__ = [
    "load_custom_state",
    "save_custom_state",
]

__getattr__ = _door(__name__)

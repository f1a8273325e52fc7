"""Accelerate's ``utils.ao`` module: layers that compute in 8 bits through torchao."""

from notebook_accel.compat.doors import door as _door
from notebook_accel.runtime.eight_bits import (
    convert_model_to_fp8_ao,
    filter_first_and_last_linear_layers,
)
from notebook_accel.strategies.fp8 import has_ao_layers

__all__ = ["convert_model_to_fp8_ao", "filter_first_and_last_linear_layers", "has_ao_layers"]

__getattr__ = _door(__name__)

"""Accelerate's ``utils.transformer_engine`` module: it says what computes in its place."""

from notebook_accel.compat.doors import door as _door
from notebook_accel.runtime.eight_bits import (
    apply_fp8_autowrap,
    contextual_fp8_autocast,
    convert_model,
    has_transformer_engine_layers,
)

__all__ = [
    "apply_fp8_autowrap",
    "contextual_fp8_autocast",
    "convert_model",
    "has_transformer_engine_layers",
]

__getattr__ = _door(__name__)

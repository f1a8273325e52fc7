"""Accelerate's ``utils.modeling`` module."""

from notebook_accel.checkpoint.names import identity as id_tensor_storage
from notebook_accel.checkpoint.weights import num_bytes as convert_file_size_to_int
from notebook_accel.compat.doors import door as _door
from notebook_accel.runtime.modules import (
    dtype_byte_size,
    find_tied_parameters,
    is_peft_model,
    load_state_dict,
    named_module_tensors,
)

__all__ = [
    "convert_file_size_to_int",
    "dtype_byte_size",
    "find_tied_parameters",
    "id_tensor_storage",
    "is_peft_model",
    "load_state_dict",
    "named_module_tensors",
]

__getattr__ = _door(__name__)

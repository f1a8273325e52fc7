"""Accelerate's ``utils.modeling`` module."""

from notebook_accel.checkpoint.names import identity as id_tensor_storage
from notebook_accel.checkpoint.weights import num_bytes as convert_file_size_to_int
from notebook_accel.compat.doors import door as _door
from notebook_accel.runtime.modules import (
    dtype_byte_size,
    find_tied_parameters,
    get_grad_scaler,
    get_mixed_precision_context_manager,
    get_model_tp_size,
    is_peft_model,
    load_state_dict,
    named_module_tensors,
)

__all__ = [
    "convert_file_size_to_int",
    "dtype_byte_size",
    "find_tied_parameters",
    "get_grad_scaler",
    "get_mixed_precision_context_manager",
    "get_model_tp_size",
    "id_tensor_storage",
    "is_peft_model",
    "load_state_dict",
    "named_module_tensors",
]

__getattr__ = _door(__name__)

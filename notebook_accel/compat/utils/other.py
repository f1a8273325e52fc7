"""Accelerate's ``utils.other`` module."""

from notebook_accel.compat.doors import door as _door
from notebook_accel.config.environment import clear_environment, patch_environment
from notebook_accel.launch.basic_config import write_basic_config
from notebook_accel.runtime.machine import check_os_kernel
from notebook_accel.runtime.modules import (
    clean_state_dict_for_safetensors,
    compile_regions,
    convert_bytes,
    extract_model_from_parallel,
    get_current_device_type,
    get_module_children_bottom_up,
    get_pretty_name,
    is_port_in_use,
    load,
    merge_dicts,
    recursive_getattr,
    save,
)
from notebook_accel.runtime.operations import wait_for_everyone
from notebook_accel.strategies.compiled import has_compiled_regions, is_compiled_module

__all__ = [
    "check_os_kernel",
    "clean_state_dict_for_safetensors",
    "clear_environment",
    "compile_regions",
    "convert_bytes",
    "extract_model_from_parallel",
    "get_current_device_type",
    "get_module_children_bottom_up",
    "get_pretty_name",
    "has_compiled_regions",
    "is_compiled_module",
    "is_port_in_use",
    "load",
    "merge_dicts",
    "patch_environment",
    "recursive_getattr",
    "save",
    "wait_for_everyone",
    "write_basic_config",
]

__getattr__ = _door(__name__)

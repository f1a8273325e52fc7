"""Accelerate's ``utils.environment`` module."""

from notebook_accel.compat.doors import door as _door
from notebook_accel.config.environment import (
    are_libraries_initialized,
    clear_environment,
    get_int_from_env,
    parse_choice_from_env,
    parse_flag_from_env,
    patch_environment,
    purge_accelerate_environment,
    str_to_bool,
)

__all__ = [
    "are_libraries_initialized",
    "clear_environment",
    "get_int_from_env",
    "parse_choice_from_env",
    "parse_flag_from_env",
    "patch_environment",
    "purge_accelerate_environment",
    "str_to_bool",
]

__getattr__ = _door(__name__)

"""Accelerate's ``state`` module."""

from notebook_accel.compat.doors import door as _door
from notebook_accel.config.environment import parse_choice_from_env, parse_flag_from_env
from notebook_accel.config.kinds import DistributedType, DynamoBackend
from notebook_accel.runtime.faces import AcceleratorState, PartialState
from notebook_accel.runtime.gradient_state import GradientState

__all__ = [
    "AcceleratorState",
    "DistributedType",
    "DynamoBackend",
    "GradientState",
    "PartialState",
    "parse_choice_from_env",
    "parse_flag_from_env",
]

__getattr__ = _door(__name__)

"""Accelerate's ``utils.deepspeed`` module."""

from notebook_accel.compat.doors import door as _door
from notebook_accel.config.deepspeed_file import HfDeepSpeedConfig
from notebook_accel.runtime.modules import compile_regions as compile_regions_deepspeed
from notebook_accel.runtime.zero_faces import (
    DeepSpeedEngineWrapper,
    DeepSpeedOptimizerWrapper,
    DeepSpeedSchedulerWrapper,
    GatheredParameters,
)
from notebook_accel.strategies.dummies import DummyOptim, DummyScheduler

__all__ = [
    "DeepSpeedEngineWrapper",
    "DeepSpeedOptimizerWrapper",
    "DeepSpeedSchedulerWrapper",
    "DummyOptim",
    "DummyScheduler",
    "GatheredParameters",
    "HfDeepSpeedConfig",
    "compile_regions_deepspeed",
]

__getattr__ = _door(__name__)

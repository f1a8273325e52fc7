"""Accelerate's ``utils.megatron_lm`` module."""

from notebook_accel.compat.doors import door as _door
from notebook_accel.runtime.megatron import (
    AbstractTrainStep,
    BertTrainStep,
    GPTTrainStep,
    MegatronLMDummyDataLoader,
    MegatronLMDummyScheduler,
    T5TrainStep,
    add_model_config_to_megatron_parser,
    avg_losses_across_data_parallel_group,
)

__all__ = [
    "AbstractTrainStep",
    "BertTrainStep",
    "GPTTrainStep",
    "MegatronLMDummyDataLoader",
    "MegatronLMDummyScheduler",
    "T5TrainStep",
    "add_model_config_to_megatron_parser",
    "avg_losses_across_data_parallel_group",
]

__getattr__ = _door(__name__)

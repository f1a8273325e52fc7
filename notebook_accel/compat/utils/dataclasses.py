"""Accelerate's ``utils.dataclasses`` module."""

from notebook_accel.compat.doors import door as _door
from notebook_accel.config.accumulation import GradientAccumulationPlugin
from notebook_accel.config.deepspeed import DeepSpeedPlugin
from notebook_accel.config.dynamo import TorchDynamoPlugin
from notebook_accel.config.fp8 import (
    AORecipeKwargs,
    FP8RecipeKwargs,
    MSAMPRecipeKwargs,
    TERecipeKwargs,
)
from notebook_accel.config.fsdp import FullyShardedDataParallelPlugin
from notebook_accel.config.handlers import (
    AutocastKwargs,
    DDPCommunicationHookType,
    DistributedDataParallelKwargs,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    KwargsHandler,
    ProfileKwargs,
)
from notebook_accel.config.kinds import (
    ComputeEnvironment,
    CustomDtype,
    DistributedType,
    DynamoBackend,
    FP8BackendType,
    LoggerType,
    PrecisionType,
    RNGType,
)
from notebook_accel.config.loading import DataLoaderConfiguration
from notebook_accel.config.megatron import MegatronLMPlugin, TorchTensorParallelPlugin
from notebook_accel.config.parallelism import TorchTensorParallelConfig
from notebook_accel.config.project import ProjectConfiguration
from notebook_accel.config.sequence import (
    DeepSpeedSequenceParallelConfig,
    TorchContextParallelConfig,
)
from notebook_accel.errors import DistributedOperationException

__all__ = [
    "AORecipeKwargs",
    "AutocastKwargs",
    "ComputeEnvironment",
    "CustomDtype",
    "DDPCommunicationHookType",
    "DataLoaderConfiguration",
    "DeepSpeedPlugin",
    "DeepSpeedSequenceParallelConfig",
    "DistributedDataParallelKwargs",
    "DistributedOperationException",
    "DistributedType",
    "DynamoBackend",
    "FP8BackendType",
    "FP8RecipeKwargs",
    "FullyShardedDataParallelPlugin",
    "GradScalerKwargs",
    "GradientAccumulationPlugin",
    "InitProcessGroupKwargs",
    "KwargsHandler",
    "LoggerType",
    "MSAMPRecipeKwargs",
    "MegatronLMPlugin",
    "PrecisionType",
    "ProfileKwargs",
    "ProjectConfiguration",
    "RNGType",
    "TERecipeKwargs",
    "TorchContextParallelConfig",
    "TorchDynamoPlugin",
    "TorchTensorParallelConfig",
    "TorchTensorParallelPlugin",
]

__getattr__ = _door(__name__)

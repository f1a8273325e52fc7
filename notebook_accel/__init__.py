"""notebook_accel: train a PyTorch loop on everything you have, without leaving the notebook.

Public names resolve lazily, so that importing the package imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "Accelerator": "runtime.accelerator",
    "AutocastKwargs": "config.handlers",
    "CheckpointError": "errors",
    "ConfigError": "errors",
    "DDP": "config.wishes",
    "DDPCommunicationHookType": "config.handlers",
    "DataLoaderConfiguration": "config.loading",
    "DeepSpeed": "config.deepspeed",
    "DeepSpeedPlugin": "config.deepspeed",
    "DevicePicker": "ui.picker",
    "DistributedDataParallelKwargs": "config.handlers",
    "DistributedOperationException": "errors",
    "DistributedType": "config.kinds",
    "FSDP": "config.wishes",
    "FullyShardedDataParallelPlugin": "config.fsdp",
    "GradScalerKwargs": "config.handlers",
    "GuardRail": "errors",
    "InitProcessGroupKwargs": "config.handlers",
    "LaunchError": "errors",
    "LaunchPicker": "ui.picker",
    "Megatron": "config.megatron",
    "NoSuchRun": "errors",
    "ParallelismConfig": "config.parallelism",
    "PartialState": "runtime.faces",
    "Pipeline": "config.wishes",
    "PrecisionPicker": "ui.picker",
    "ProfileKwargs": "config.handlers",
    "RanksStuck": "errors",
    "Run": "launch.handle",
    "RunConfig": "config.resolve",
    "RunInterrupted": "errors",
    "RunResult": "launch.result",
    "RunStopped": "errors",
    "RunTimeout": "errors",
    "SequenceParallel": "config.sequence",
    "SingleDevice": "config.wishes",
    "StopRun": "errors",
    "TensorParallel": "config.wishes",
    "WorkerDied": "errors",
    "WorkerFailed": "errors",
    "advise": "launch.advice",
    "debug_launcher": "launch.launcher",
    "doctor": "launch.doctor",
    "find_executable_batch_size": "runtime.memory",
    "is_rich_available": "config.installed",
    "load_ipython_extension": "launch.openers",
    "load_weights": "checkpoint.weights",
    "notebook_launcher": "launch.launcher",
    "prepare_pippy": "runtime.pieces",
    "set_seed": "ranks.seeding",
    "shutdown": "launch.forkserver",
    "skip_first_batches": "data.skip",
    "synchronize_rng_states": "runtime.operations",
    "use_in_trainer": "compat.trainer",
    "watch_devices": "launch.openers",
    "whole_sequences": "strategies.sequence_forward",
    "without_guards": "config.guards",
}

# Accelerate's modules (notebook_accel.utils, .state, ...) lie in a folder of their own.
__path__.append(f"{__path__[0]}/compat")
_FACES = (
    "accelerator",
    "big_modeling",
    "checkpointing",
    "data_loader",
    "hooks",
    "inference",
    "launchers",
    "local_sgd",
    "logging",
    "memory_utils",
    "optimizer",
    "parallelism_config",
    "scheduler",
    "state",
    "test_utils",
    "tracking",
    "utils",
)

_MODULES = {"playground": "ui.playground", "runs": "ui.runs"}  # modules under a public name

__all__ = sorted([*_WHERE, *_MODULES, "__version__"])

if TYPE_CHECKING:
    from notebook_accel.checkpoint.weights import load_weights
    from notebook_accel.compat.trainer import use_in_trainer
    from notebook_accel.config.deepspeed import DeepSpeed, DeepSpeedPlugin
    from notebook_accel.config.fsdp import FullyShardedDataParallelPlugin
    from notebook_accel.config.guards import without_guards
    from notebook_accel.config.handlers import (
        AutocastKwargs,
        DDPCommunicationHookType,
        DistributedDataParallelKwargs,
        GradScalerKwargs,
        InitProcessGroupKwargs,
        ProfileKwargs,
    )
    from notebook_accel.config.installed import is_rich_available
    from notebook_accel.config.kinds import DistributedType
    from notebook_accel.config.loading import DataLoaderConfiguration
    from notebook_accel.config.megatron import Megatron
    from notebook_accel.config.parallelism import ParallelismConfig
    from notebook_accel.config.resolve import RunConfig
    from notebook_accel.config.sequence import SequenceParallel
    from notebook_accel.config.wishes import DDP, FSDP, Pipeline, SingleDevice, TensorParallel
    from notebook_accel.data.skip import skip_first_batches
    from notebook_accel.errors import (
        CheckpointError,
        ConfigError,
        DistributedOperationException,
        GuardRail,
        LaunchError,
        NoSuchRun,
        RanksStuck,
        RunInterrupted,
        RunStopped,
        RunTimeout,
        StopRun,
        WorkerDied,
        WorkerFailed,
    )
    from notebook_accel.launch.advice import advise
    from notebook_accel.launch.doctor import doctor
    from notebook_accel.launch.forkserver import shutdown
    from notebook_accel.launch.handle import Run
    from notebook_accel.launch.launcher import debug_launcher, notebook_launcher
    from notebook_accel.launch.openers import load_ipython_extension, watch_devices
    from notebook_accel.launch.result import RunResult
    from notebook_accel.ranks.seeding import set_seed
    from notebook_accel.runtime.accelerator import Accelerator
    from notebook_accel.runtime.faces import PartialState
    from notebook_accel.runtime.memory import find_executable_batch_size
    from notebook_accel.runtime.operations import synchronize_rng_states
    from notebook_accel.runtime.pieces import prepare_pippy
    from notebook_accel.strategies.sequence_forward import whole_sequences
    from notebook_accel.ui import playground, runs
    from notebook_accel.ui.picker import DevicePicker, LaunchPicker, PrecisionPicker


def __getattr__(name: str) -> Any:
    if name in _FACES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{_MODULES[name]}")
    if name not in _WHERE:
        absent = importlib.import_module(f"{__name__}.config.absent")
        if name in absent.WHAT_BRINGS:
            raise absent.not_here(name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

"""Accelerate's ``utils.imports`` module: which packages are installed, what the device can do."""

from typing import Any

import torch

from notebook_accel.compat.doors import door as _make_door
from notebook_accel.config.installed import availability, is_installed
from notebook_accel.config.installed import deepspeed_required as deepspeed_required
from notebook_accel.config.installed import is_rich_available as is_rich_available
from notebook_accel.config.installed import torchao_required as torchao_required

_door = _make_door(__name__)
_DEVICES = ("hpu", "mlu", "musa", "npu", "sdaa", "xpu")


def is_cuda_available() -> bool:
    """Tell whether there is a CUDA device."""
    return torch.cuda.is_available()


def is_mps_available(min_version: str = "") -> bool:
    """Tell whether there is a device of Apple's."""
    return torch.backends.mps.is_available()


def is_rocm_available() -> bool:
    """Tell whether torch was built for AMD's devices."""
    return torch.version.hip is not None


def is_bf16_available(ignore_tpu: bool = False) -> bool:
    """Tell whether forward passes can run in bfloat16 here."""
    return torch.cuda.is_bf16_supported() if torch.cuda.is_available() else True


def is_fp16_available() -> bool:
    """Tell whether forward passes can run in float16 here."""
    return True


def is_fp8_available() -> bool:
    """Tell whether forward passes can run in eight bits here, by the unit or emulated."""
    return is_installed("torchao")


def is_weights_only_available() -> bool:
    """Tell whether torch can load weights without code."""
    return True


def is_neuron_available() -> bool:
    """Tell whether there is an AWS Neuron device."""
    return False


def is_habana_gaudi1_available() -> bool:
    """Tell whether there is a Gaudi device of the first generation."""
    return False


def is_xccl_available() -> bool:
    """Tell whether torch has Intel's library for collectives."""
    return torch.distributed.is_available() and torch.distributed.is_xccl_available()


def _no_such_device() -> bool:
    return False


def __getattr__(name: str) -> Any:
    if name.startswith("is_") and name.endswith("_available"):
        subject = name.removeprefix("is_").removesuffix("_available")
        if subject in _DEVICES:
            module = getattr(torch, subject, None)
            return _no_such_device if module is None else module.is_available
        asked = availability(subject)
        if asked is not None:
            return asked
    return _door(name)

"""The words that Accelerate's users compare with: kinds of worlds, precisions, loggers, compilers.

Each is an enum of strings: equal to its value, printed as its value, ``"fp16" in PrecisionType``,
and ``PrecisionType.list()`` on every supported Python.
"""

from __future__ import annotations

import builtins
from enum import Enum, EnumMeta


class _Words(EnumMeta):
    def __contains__(cls, value: object) -> bool:
        try:
            cls(value)
        except ValueError:
            return False
        return True


class WordEnum(str, Enum, metaclass=_Words):
    """An enum of strings."""

    def __str__(self) -> str:
        return str(self.value)

    @classmethod
    def list(cls) -> builtins.list[str]:
        """Give the values."""
        return [one.value for one in cls]


class DistributedType(WordEnum):
    """What kind of ranks a program runs on."""

    NO = "NO"
    MULTI_CPU = "MULTI_CPU"
    MULTI_GPU = "MULTI_GPU"
    MULTI_NPU = "MULTI_NPU"
    MULTI_MLU = "MULTI_MLU"
    MULTI_SDAA = "MULTI_SDAA"
    MULTI_MUSA = "MULTI_MUSA"
    MULTI_XPU = "MULTI_XPU"
    DEEPSPEED = "DEEPSPEED"
    FSDP = "FSDP"
    XLA = "XLA"
    MEGATRON_LM = "MEGATRON_LM"
    MULTI_HPU = "MULTI_HPU"
    MULTI_NEURON = "MULTI_NEURON"


class ComputeEnvironment(WordEnum):
    """Where a program runs."""

    LOCAL_MACHINE = "LOCAL_MACHINE"
    AMAZON_SAGEMAKER = "AMAZON_SAGEMAKER"


class PrecisionType(WordEnum):
    """In what numbers forward passes run."""

    NO = "no"
    FP8 = "fp8"
    FP16 = "fp16"
    BF16 = "bf16"


class FP8BackendType(WordEnum):
    """Which library computes in eight bits."""

    NO = "NO"
    TE = "TE"
    MSAMP = "MSAMP"
    AO = "AO"


class RNGType(WordEnum):
    """A source of random numbers that ranks can share."""

    TORCH = "torch"
    CUDA = "cuda"
    MLU = "mlu"
    SDAA = "sdaa"
    MUSA = "musa"
    NPU = "npu"
    XLA = "xla"
    XPU = "xpu"
    HPU = "hpu"
    NEURON = "neuron"
    GENERATOR = "generator"


class LoggerType(WordEnum):
    """A tracker by its name, as ``log_with`` takes it."""

    ALL = "all"
    AIM = "aim"
    TENSORBOARD = "tensorboard"
    WANDB = "wandb"
    TRACKIO = "trackio"
    COMETML = "comet_ml"
    MLFLOW = "mlflow"
    CLEARML = "clearml"
    DVCLIVE = "dvclive"
    SWANLAB = "swanlab"


class CustomDtype(WordEnum):
    """Number types for memory estimates that torch itself has no dtype for."""

    FP8 = "fp8"
    INT4 = "int4"
    INT2 = "int2"


class DynamoBackend(WordEnum):
    """A backend of ``torch.compile``; NO compiles nothing."""

    NO = "NO"
    EAGER = "EAGER"
    AOT_EAGER = "AOT_EAGER"
    INDUCTOR = "INDUCTOR"
    AOT_TS_NVFUSER = "AOT_TS_NVFUSER"
    NVPRIMS_NVFUSER = "NVPRIMS_NVFUSER"
    CUDAGRAPHS = "CUDAGRAPHS"
    OFI = "OFI"
    FX2TRT = "FX2TRT"
    ONNXRT = "ONNXRT"
    TENSORRT = "TENSORRT"
    AOT_TORCHXLA_TRACE_ONCE = "AOT_TORCHXLA_TRACE_ONCE"
    TORCHXLA_TRACE_ONCE = "TORCHXLA_TRACE_ONCE"
    TVM = "TVM"
    HPU_BACKEND = "HPU_BACKEND"
    NEURON = "NEURON"

"""In which numbers a forward pass runs, and the loss scale that fp16 needs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from notebook_accel.config.fp8 import AORecipeKwargs
from notebook_accel.ranks.collectives import half_to_full, map_tensors
from notebook_accel.strategies.cpu_bf16 import say_how_bf16_runs
from notebook_accel.strategies.fp8 import EightBits, plain_layers, say_how_fp8_runs
from notebook_accel.strategies.scaling import LossScaler

# In fp8 it is linear layers that compute in 8 bits, and all else in bf16.
_DTYPES = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}


class Precision:
    """The compute dtype of forward passes, for fp16 the loss scaler, for fp8 what makes its layers.

    ``scaler`` are arguments of ``torch.amp.GradScaler``, ``cast`` of ``torch.autocast``; ``recipe``
    says how fp8 computes.

    Errors: ConfigError for fp8 on a device that has none.
    Source: Micikevicius et al. 2018, "Mixed precision training", section 3.
    """

    def __init__(
        self,
        name: str,
        device: torch.device,
        scaler: Mapping[str, Any] = MappingProxyType({}),
        cast: Mapping[str, Any] = MappingProxyType({}),
        recipe: AORecipeKwargs | None = None,
    ) -> None:
        self.name = name
        self.dtype: torch.dtype | None = _DTYPES[name]
        self.device_type = device.type
        self.scaler = LossScaler(device.type, **scaler) if name == "fp16" else None
        self.eight_bits = EightBits(recipe or AORecipeKwargs(), device) if name == "fp8" else None
        self._cast = dict(cast)

    def announce(self) -> None:
        """Say, once a process, what is not native about this precision on this device."""
        if self.name == "bf16" and self.device_type == "cpu":
            say_how_bf16_runs()
        elif self.eight_bits is not None and self.eight_bits.is_emulated:
            say_how_fp8_runs(self.device_type)

    def describe(self, model: nn.Module) -> str:
        """Say in a few words which layers of ``model`` compute in other numbers than the rest."""
        return "" if self.eight_bits is None else self.eight_bits.describe(model)

    def autocast(self, **cast: Any) -> Any:
        """Give a fresh context in which operations run in the compute dtype.

        ``cast`` are arguments of ``torch.autocast`` for this once.
        """
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(self.device_type, dtype=self.dtype, **(cast or self._cast))


class MixedForward:
    """A module's forward under autocast, its half-precision outputs made float32.

    Pickled with its module (a result that travels, a saved module) it becomes the plain forward
    again: precision belongs to the run. A deep copy (an average of weights) keeps it.
    """

    def __init__(self, forward: Any, precision: Precision) -> None:
        self.forward = forward
        self.precision = precision
        self.upcasts = True
        self.__doc__ = forward.__doc__
        self.__wrapped__ = forward  # so that inspect.signature sees the person's arguments

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward in the compute dtype."""
        with self.precision.autocast():
            outputs = self.forward(*args, **kwargs)
            return map_tensors(half_to_full, outputs) if self.upcasts else outputs

    def __reduce__(self) -> Any:
        return getattr, (self.forward.__self__, "forward")

    def __deepcopy__(self, memo: dict[int, Any]) -> MixedForward:
        copied = MixedForward(copy.deepcopy(self.forward, memo), self.precision)
        copied.upcasts = self.upcasts
        return copied


def mix(model: nn.Module, precision: Precision) -> None:
    """Let the forward of ``model`` run in ``precision``, and its layers in 8 bits if it says so."""
    plain_forward(model)  # an Accelerator of a cell run before may have left its precision
    if precision.eight_bits is None:
        plain_layers(model)
    else:
        precision.eight_bits.convert(model)
    if precision.dtype is not None:
        model.forward = MixedForward(model.forward, precision)


def plain_forward(model: nn.Module) -> nn.Module:
    """Undo MixedForward on ``model``."""
    if isinstance(vars(model).get("forward"), MixedForward):
        del model.forward
    return model


def upcast_outputs(model: nn.Module, upcast: bool) -> None:
    """Say whether half-precision outputs of ``model``'s forward are made float32."""
    forward = vars(model).get("forward")
    if isinstance(forward, MixedForward):
        forward.upcasts = upcast

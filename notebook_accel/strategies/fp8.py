"""Linear layers that compute in 8 bits, by torchao's float8: which ones, and how they are made.

A layer stays the person's own object while it does: only its class changes, so its name, its hooks
and the optimizer's parameters stay what they were, and pickled it is a plain layer again.

Scales are powers of two. Dividing by one changes no digit of a number, so what a number becomes in
8 bits does not depend on the other numbers of its batch: one rank and many compute the same.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from notebook_accel.config.fp8 import AORecipeKwargs
from notebook_accel.config.words import kind_of
from notebook_accel.errors import ConfigError
from notebook_accel.events import rails
from notebook_accel.ranks.hooks import Hook
from notebook_accel.strategies.quiet import hushed

Wanted = Callable[[nn.Module, str], bool]

NATIVE_FROM = (8, 9)  # compute capability of Ada; Hopper and what came after have more
_NATIVE_FROM_AMD = (9, 4)  # MI300
_NUM_NAMED = 4  # layers that ``describe`` names
_ours: set[type] = set()


class EightBits:
    """What makes the linear layers of models compute in 8 bits on ``device``.

    Errors: ConfigError for a device that has no 8-bit numbers.
    """

    def __init__(self, recipe: AORecipeKwargs, device: torch.device) -> None:
        if device.type in ("mps", "xla"):
            raise ConfigError(
                f"mixed_precision='fp8' on {device.type}",
                "torch keeps no 8-bit floating-point numbers on this device",
                "write mixed_precision='bf16'",
            )
        self.is_emulated = not is_native(device)
        self._recipe = recipe

    def convert(self, model: nn.Module, gathers: bool = False) -> None:
        """Let the layers of ``model`` that are chosen compute in 8 bits; those that do stay so.

        ``gathers`` lets FSDP, which is to cut the model up next, gather their weights in 8 bits if
        the recipe says so; they are new parameters then.
        """
        config = self._config(gathers)
        for name in choose_layers(model, self._recipe.module_filter_func)[0]:
            layer = model.get_submodule(name)
            if not isinstance(layer, tuple(_ours)):
                convert_layer(layer, config)

    def note_of_none(self, model: nn.Module) -> None:
        """Say so where no layer of ``model`` computes in 8 bits."""
        if not choose_layers(model, self._recipe.module_filter_func)[0]:
            rails.note(f"fp8 in {type(model).__name__}: {self.describe(model)}; all is bf16")

    def describe(self, model: nn.Module) -> str:
        """Say which layers of ``model`` compute in 8 bits, which do not, and why."""
        chosen, left = choose_layers(model, self._recipe.module_filter_func)
        text = f"{len(chosen)} of {len(chosen) + len(left)} linear layers in fp8"
        if self.is_emulated:
            text += " (emulated: right numbers, no speed)"
        if left:
            reasons = [f"{_plain_name(name)} ({why})" for name, why in left.items()]
            rest = len(reasons) - _NUM_NAMED
            more = f" and {rest} more" if rest > 0 else ""
            text += f"; not in fp8: {', '.join(reasons[:_NUM_NAMED])}{more}"
        return text

    def _config(self, gathers: bool) -> Any:
        recipe = self._recipe
        config = recipe.config
        if config is None:
            config = float8().Float8LinearConfig(
                enable_fsdp_float8_all_gather=bool(recipe.enable_fsdp_float8_all_gather),
                pad_inner_dim=bool(recipe.pad_inner_dim),
                round_scales_to_power_of_2=True,
            )
        changes: dict[str, Any] = {} if gathers else {"enable_fsdp_float8_all_gather": False}
        if self.is_emulated:
            changes["emulate"] = True
        return dataclasses.replace(config, **changes)


@functools.cache  # once a process, whoever asks
def say_how_fp8_runs(device_type: str) -> None:
    """State that fp8 on this kind of device is emulated."""
    rails.note(
        f"fp8 on this {device_type} is emulated: right numbers, no speed (native from compute "
        f"capability {NATIVE_FROM[0]}.{NATIVE_FROM[1]})"
    )


def is_native(device: torch.device) -> bool:
    """Tell whether ``device`` multiplies 8-bit numbers itself."""
    if device.type != "cuda":
        return False
    least = NATIVE_FROM if torch.version.hip is None else _NATIVE_FROM_AMD
    return torch.cuda.get_device_capability(device) >= least


# ── layers ────────────────────────────────────────────────────────────────────────────────────


def choose_layers(
    model: nn.Module, wanted: Wanted | None = None
) -> tuple[list[str], dict[str, str]]:
    """Name the linear layers of ``model`` that can compute in 8 bits, and the others with the why.

    ``wanted(layer, name)`` takes the place of the usual rule: not the first, not the last, and none
    whose sizes are no multiples of 16. Layers of a class of their own, and those that share their
    weight, never do.
    """
    every = {name: one for name, one in model.named_modules() if isinstance(one, nn.Linear)}
    uses = Counter(
        id(one) for part in model.modules() for one in part._parameters.values() if one is not None
    )
    chosen, left = [], {}
    for index, (name, layer) in enumerate(every.items()):
        if type(layer) is not nn.Linear and not isinstance(layer, tuple(_ours)):
            left[name] = kind_of(layer)
        elif uses[id(layer.weight)] > 1:
            left[name] = "shares its weight"
        elif wanted is not None:
            if wanted(layer, _plain_name(name)):
                chosen.append(name)
            else:
                left[name] = "not chosen"
        elif index == 0 or index == len(every) - 1:
            left[name] = "first" if index == 0 else "last"
        elif not fits(layer):
            left[name] = f"{layer.in_features} x {layer.out_features}, not multiples of 16"
        else:
            chosen.append(name)
    return chosen, left


def fits(layer: nn.Linear) -> bool:
    """Tell whether the sizes of ``layer`` are multiples of 16, as 8-bit units need them."""
    return layer.in_features % 16 == 0 and layer.out_features % 16 == 0


def convert_layer(layer: nn.Module, config: Any) -> None:
    """Let one linear layer compute in 8 bits as a ``Float8LinearConfig`` says.

    Source: torchao.float8.convert_to_float8_training, whose layer gives its class and settings.
    """
    made = float8().convert_to_float8_training(layer, config=config)
    added = {name: value for name, value in vars(made).items() if name not in vars(layer)}
    vars(layer).update(added)
    layer.weight = made.weight  # another parameter where FSDP will gather in 8 bits
    theirs: Any = type(made)
    layer.__class__ = _our_class(theirs, tuple(added))


def plain_layers(model: nn.Module) -> None:
    """Undo ``convert_layer`` on all layers of ``model``.

    Errors: ConfigError for weights that FSDP gathers in 8 bits, which cannot go back.
    """
    for layer in model.modules() if _ours else ():
        if isinstance(layer, tuple(_ours)):
            if type(layer) not in _ours or isinstance(layer.weight, DTensor):
                raise ConfigError(
                    f"{kind_of(model)} that was sharded in fp8 is prepared in another precision",
                    "its shards are gathered in 8 bits from now on",
                    "build the model anew, in the cell that prepares it",
                )
            for name in type(layer).added:  # type: ignore[attr-defined]
                vars(layer).pop(name, None)
            layer.__class__ = nn.Linear


def has_ao_layers(model: nn.Module) -> bool:
    """Tell whether a layer of ``model`` computes in 8 bits through torchao."""
    module = sys.modules.get("torchao.float8.float8_linear")  # not imported: nobody has one
    return module is not None and any(
        isinstance(one, module.Float8Linear) for one in model.modules()
    )


@functools.cache
def _our_class(theirs: Any, names: tuple[str, ...]) -> type:
    """Derive the class of our layers from torchao's, which adds the attributes ``names``."""

    class Float8Linear(theirs):  # type: ignore[misc]
        added = names

        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            super()._save_to_state_dict(destination, prefix, keep_vars)
            name = f"{prefix}weight"
            if not keep_vars and name in destination:
                destination[name] = _without_cast(destination[name])

        def __reduce__(self) -> Any:  # precision belongs to the run
            state = {name: one for name, one in vars(self).items() if name not in names}
            return object.__new__, (nn.Linear,), state

    _ours.add(Float8Linear)
    return Float8Linear


def _plain_name(name: str) -> str:
    return name.replace("_checkpoint_wrapped_module.", "") or "the model itself"


def _without_cast(weight: Tensor) -> Tensor:
    """Give the shard of a weight that is gathered in 8 bits as a plain tensor, of the same memory.

    Whoever writes states asks tensors for their memory, and torchao's have none of their own.
    """
    part = weight.to_local() if isinstance(weight, DTensor) else weight
    inner: Tensor | None = getattr(part, "_tensor", None)
    if inner is None:
        return weight
    if not isinstance(weight, DTensor):
        return inner
    return DTensor.from_local(
        inner,
        weight.device_mesh,
        weight.placements,
        run_check=False,
        shape=weight.shape,
        stride=weight.stride(),
    )


# ── FSDP ──────────────────────────────────────────────────────────────────────────────────────


def share_scales(model: nn.Module) -> None:
    """Let the ranks agree on the scales of all weights of a sharded ``model`` before each forward.

    It is one small collective, instead of one for each weight when that is gathered.

    Ranks: all ranks call it, and from then on the model.
    Source: torchao.float8.precompute_float8_dynamic_scale_for_fsdp.
    """
    if gathering_layers(model):
        share = torch.compiler.disable(_share)  # type: ignore[no-untyped-call]
        model.register_forward_pre_hook(Hook(share), prepend=True)


def gathering_layers(model: nn.Module) -> list[Any]:
    """List the layers of a sharded ``model`` whose weights are gathered in 8 bits."""
    layers: list[Any] = [one for one in model.modules() if isinstance(one, tuple(_ours))]
    return [one for one in layers if one.config.enable_fsdp_float8_all_gather]


def _share(model: nn.Module, inputs: Any) -> None:
    float8().precompute_float8_dynamic_scale_for_fsdp(model)
    for layer in gathering_layers(model):
        scale = getattr(getattr(layer.weight, "_local_tensor", None), "_precomputed_scale", None)
        if scale is not None and layer.config.round_scales_to_power_of_2:
            scale.copy_(scale.log2().floor().exp2())


# ── torchao ───────────────────────────────────────────────────────────────────────────────────


@functools.cache
def float8() -> Any:
    """Import torchao's float8, without what it says of kernels for GPUs that are not here."""
    with hushed("torchao"), hushed("torch.utils._pytree"):
        return importlib.import_module("torchao.float8")

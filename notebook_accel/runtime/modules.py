"""Small tools for models, files and names, for code that holds no Accelerator."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from notebook_accel.checkpoint import weights
from notebook_accel.config.environment import get_int_from_env
from notebook_accel.config.handlers import AutocastKwargs
from notebook_accel.config.placement import DEFAULT_PORT
from notebook_accel.ranks.place import placement_here
from notebook_accel.runtime.faces import AcceleratorState
from notebook_accel.strategies.compiled import compile_model, uncompiled
from notebook_accel.strategies.precision import Precision, plain_forward


def extract_model_from_parallel(
    model: nn.Module,
    keep_fp32_wrapper: bool = True,
    keep_torch_compile: bool = True,
    recursive: bool = False,
) -> nn.Module:
    """Give the module inside data-parallel wrappers; ``recursive`` also those of its parts.

    Without ``keep_fp32_wrapper`` its forward is as it was made; without ``keep_torch_compile``
    it is the module under ``torch.compile``.
    """
    own = model
    while isinstance(wrapper := uncompiled(own), (DataParallel, DistributedDataParallel)):
        own = wrapper.module
    if recursive:
        for name, child in list(own.named_children()):
            inner = extract_model_from_parallel(child, keep_fp32_wrapper, keep_torch_compile, True)
            if inner is not child:
                setattr(own, name, inner)
    if not keep_fp32_wrapper:
        plain_forward(uncompiled(own))
    return own if keep_torch_compile else uncompiled(own)


def compile_regions(module: nn.Module, **compile_kwargs: Any) -> nn.Module:
    """Compile the repeated blocks of ``module`` one by one, in place; the whole if it has none."""
    return compile_model(module, True, compile_kwargs)


def save(
    obj: Any,
    f: str | os.PathLike[str],
    save_on_each_node: bool = False,
    safe_serialization: bool = False,
) -> None:
    """Write ``obj`` on rank 0 (or the first rank of each machine): tensors by name, or anything.

    With ``safe_serialization`` it is a state dict, written as safetensors.
    """
    place = placement_here()
    if (place.local_rank if save_on_each_node else place.rank) != 0:
        return
    if safe_serialization:
        weights.write(weights.without_repeats(obj), Path(f), safe=True)
    else:
        torch.save(obj, f)


def load(f: str | os.PathLike[str], map_location: Any = None, **kwargs: Any) -> Any:
    """Read what ``save`` or ``torch.save`` wrote; no code of the file runs unless asked for.

    ``kwargs`` are arguments of ``torch.load``.
    """
    return torch.load(f, map_location=map_location, **{"weights_only": True, **kwargs})


def save_custom_state(
    obj: Any, path: str | os.PathLike[str], index: int = 0, save_on_each_node: bool = False
) -> None:
    """Write the state of ``obj`` into ``path``, as ``save_state`` writes object ``index``.

    Ranks: any; rank 0 (or the first rank of each machine) writes.
    """
    save(obj.state_dict(), Path(path) / f"custom_checkpoint_{index}.pkl", save_on_each_node)


def load_custom_state(obj: Any, path: str | os.PathLike[str], index: int = 0) -> None:
    """Give ``obj`` the state that ``save_custom_state`` wrote; any pickle, so any code."""
    obj.load_state_dict(load(Path(path) / f"custom_checkpoint_{index}.pkl", weights_only=False))


def load_state_dict(
    checkpoint_file: str | os.PathLike[str], device_map: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Read a state dict from safetensors or from what ``torch.save`` wrote.

    ``device_map`` puts tensors on devices by the longest beginning of their names; "" is the rest,
    and what it sends to "disk" stays where it is read.
    """
    state = weights.read(Path(checkpoint_file))
    if device_map:
        for name, tensor in state.items():
            place = _place_of(name, device_map)
            if place not in (None, "disk"):
                state[name] = tensor.to(place)
    return state


def _place_of(name: str, device_map: Mapping[str, Any]) -> Any:
    inside = [key for key in device_map if key == "" or f"{name}.".startswith(f"{key}.")]
    return device_map[max(inside, key=len)] if inside else None


def clean_state_dict_for_safetensors(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Give a state dict in which every tensor has one name, as safetensors wants it."""
    return weights.without_repeats(state_dict)


def find_tied_parameters(model: nn.Module) -> list[list[str]]:
    """Give the groups of names under which ``model`` holds the same parameter."""
    groups: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return sorted(sorted(names) for names in groups.values() if len(names) > 1)


def named_module_tensors(
    module: nn.Module,
    include_buffers: bool = True,
    recurse: bool = False,
    remove_non_persistent: bool = False,
) -> Iterator[tuple[str, Tensor]]:
    """Go through the parameters and buffers of ``module`` by name."""
    yield from module.named_parameters(recurse=recurse)
    if include_buffers:
        saved = module.state_dict() if remove_non_persistent else None
        for name, buffer in module.named_buffers(recurse=recurse):
            if saved is None or name in saved:
                yield name, buffer


def get_module_children_bottom_up(model: nn.Module, return_fqns: bool = False) -> list[Any]:
    """Give every module of ``model``, those inside others first and ``model`` last.

    With ``return_fqns`` each comes as a pair with its dotted name.
    """
    found = [*_bottom_up(model, "")]
    return [(name, one) for name, one in found] if return_fqns else [one for _, one in found]


def _bottom_up(model: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    for child_name, child in model.named_children():
        yield from _bottom_up(child, f"{name}.{child_name}" if name else child_name)
    yield name, model


def dtype_byte_size(dtype: torch.dtype) -> float:
    """Give how many bytes an element takes; a bit for a boolean, as in estimates of memory."""
    return 1 / 8 if dtype == torch.bool else dtype.itemsize


def is_peft_model(model: nn.Module) -> bool:
    """Tell whether peft wraps ``model``."""
    own = extract_model_from_parallel(model)
    return any(kind.__name__ == "PeftModel" for kind in type(uncompiled(own)).__mro__)


def get_model_tp_size(model: nn.Module) -> int:
    """Give over how many ranks ``model`` says that its tensors are cut; 1 if it says nothing."""
    own: Any = uncompiled(extract_model_from_parallel(model))
    return int(getattr(own, "tp_size", None) or 1)


def get_grad_scaler(distributed_type: Any = None, **kwargs: Any) -> torch.amp.GradScaler:
    """Make torch's loss scaler for this machine's device; ``kwargs`` are its arguments.

    An Accelerator makes its own, ``accelerator.scaler``; ``distributed_type`` changes nothing.
    """
    return torch.amp.GradScaler(get_current_device_type()[0], **kwargs)


def get_mixed_precision_context_manager(
    native_amp: bool = False, autocast_kwargs: AutocastKwargs | None = None
) -> Any:
    """Give the context in which forward passes run in the newest Accelerator's precision.

    Without ``native_amp`` it changes nothing.

    Errors: RuntimeMisuse when there is no Accelerator yet.
    """
    if not native_amp:
        return nullcontext()
    state = AcceleratorState()
    cast = {} if autocast_kwargs is None else autocast_kwargs.to_kwargs()
    return Precision(state.mixed_precision, state.device).autocast(**cast)


def get_current_device_type() -> tuple[str, str]:
    """Give this machine's device type and what several ranks on it are: ("cpu", "MULTI_CPU")."""
    device = torch.accelerator.current_accelerator()
    kind = "cpu" if device is None or not torch.accelerator.is_available() else device.type
    return kind, f"MULTI_{'GPU' if kind == 'cuda' else kind.upper()}"


def is_port_in_use(port: int | str | None = None) -> bool:
    """Tell whether something on this machine listens at ``port``, else at the launch's port."""
    number = int(port) if port else get_int_from_env(["MASTER_PORT"], DEFAULT_PORT)
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", number)) == 0


def convert_bytes(size: float) -> str:
    """Write a number of bytes for people: ``convert_bytes(2048)`` is "2.0 KB"."""
    units = ["bytes", "KB", "MB", "GB", "TB", "PB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{round(size, 2)} {units[0]}"


def merge_dicts(source: dict[Any, Any], destination: dict[Any, Any]) -> dict[Any, Any]:
    """Write ``source`` over ``destination``, dictionaries in it into each other; gives it back."""
    for name, value in source.items():
        if isinstance(value, dict):
            merge_dicts(value, destination.setdefault(name, {}))
        else:
            destination[name] = value
    return destination


def recursive_getattr(obj: Any, attr: str) -> Any:
    """Follow a dotted name from ``obj``."""
    return reduce(getattr, attr.split("."), obj)


def get_pretty_name(obj: Any) -> str:
    """Name a function, a class, or the class of any other object."""
    named = obj if hasattr(obj, "__qualname__") or hasattr(obj, "__name__") else type(obj)
    return str(getattr(named, "__qualname__", named.__name__))

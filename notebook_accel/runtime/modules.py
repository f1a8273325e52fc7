"""Small tools for models, files and names, for code that holds no Accelerator."""

from __future__ import annotations

import os
import socket
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from notebook_accel.checkpoint import weights
from notebook_accel.config.environment import get_int_from_env
from notebook_accel.ranks.place import placement_here
from notebook_accel.strategies.compiled import compile_model, uncompiled
from notebook_accel.strategies.precision import plain_forward

DEFAULT_PORT = 29500


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

"""Functions of nested data: tensors in lists, tuples, named tuples and mappings.

None of them talks to another rank; those that do are in ``operations``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from notebook_accel.config.words import kind_of
from notebook_accel.data.batch import to_device
from notebook_accel.errors import RuntimeMisuse
from notebook_accel.ranks.collectives import half_to_full, map_tensors, map_tree


class TensorInformation(NamedTuple):
    """What must be known of a tensor to make an empty one like it."""

    shape: torch.Size
    dtype: torch.dtype


class UnfitData(RuntimeMisuse, TypeError):
    """Nested data holds, or lacks, something that this function needs."""


def is_torch_tensor(tensor: Any) -> bool:
    """Tell whether this is a tensor."""
    return isinstance(tensor, Tensor)


def is_tensor_information(tensor_info: Any) -> bool:
    """Tell whether this stands for a tensor in ``get_data_structure``'s result."""
    return isinstance(tensor_info, TensorInformation)


def is_namedtuple(data: Any) -> bool:
    """Tell whether this is an instance of a named tuple."""
    return isinstance(data, tuple) and hasattr(data, "_fields") and hasattr(data, "_asdict")


def honor_type(obj: Any, generator: Iterable[Any]) -> Any:
    """Make a container of ``obj``'s type out of what ``generator`` gives."""
    items = list(generator)
    return type(obj)(*items) if is_namedtuple(obj) else type(obj)(items)


def recursively_apply(
    func: Callable[..., Any],
    data: Any,
    *args: Any,
    test_type: Callable[[Any], bool] = is_torch_tensor,
    error_on_other_type: bool = False,
    **kwargs: Any,
) -> Any:
    """Apply ``func`` to every leaf that ``test_type`` accepts; containers keep their types.

    Errors: UnfitData (a TypeError) for another leaf, with ``error_on_other_type``.
    """

    def leaf(one: Any) -> Any:
        if test_type(one):
            return func(one, *args, **kwargs)
        if error_on_other_type:
            raise UnfitData(
                f"{getattr(func, '__name__', func)} met {kind_of(one)}",
                f"it takes nested lists, tuples and mappings of what {_name(test_type)} accepts",
                "leave such values out, or gather them with gather_object",
            )
        return one

    return map_tree(leaf, data, is_leaf=test_type)


def send_to_device(
    tensor: Any, device: Any, non_blocking: bool = False, skip_keys: Any = None
) -> Any:
    """Move every tensor, and whatever else has ``to``, to ``device``.

    Values of mappings under ``skip_keys`` (a name or a list of them) stay where they are.
    """
    skipped = set(listed(skip_keys))
    if skipped and isinstance(tensor, Mapping):
        moved = {
            name: value
            if name in skipped
            else send_to_device(value, device, non_blocking, skip_keys)
            for name, value in tensor.items()
        }
        return type(tensor)(moved)  # type: ignore[call-arg]
    if skipped and isinstance(tensor, (list, tuple)):
        parts = (send_to_device(one, device, non_blocking, skip_keys) for one in tensor)
        return honor_type(tensor, parts)
    return to_device(tensor, torch.device(device), non_blocking=non_blocking)


def concatenate(data: Any, dim: int = 0) -> Any:
    """Join a list of trees of the same structure into one, tensor by tensor along ``dim``.

    Errors: UnfitData (a TypeError) for several parts of something that is no tensor.
    """
    first = data[0]
    if isinstance(first, (list, tuple)):
        return honor_type(
            first, (concatenate(list(parts), dim) for parts in zip(*data, strict=True))
        )
    if isinstance(first, Mapping):
        joined = {name: concatenate([one[name] for one in data], dim) for name in first}
        return type(first)(joined)  # type: ignore[call-arg]
    if isinstance(first, Tensor):
        return torch.cat(list(data), dim)
    if len(data) == 1:
        return first
    raise UnfitData(
        f"concatenate met {len(data)} parts of type {type(first).__name__}",
        "only tensors can be joined along a dimension",
        "make tensors of them, or leave them out",
    )


def slice_tensors(
    data: Any, tensor_slice: Any, process_index: int | None = None, num_processes: int | None = None
) -> Any:
    """Take the same slice of every tensor; the two numbers change nothing."""
    return map_tensors(lambda tensor: tensor[tensor_slice], data)


def find_batch_size(data: Any) -> int:
    """Give the first dimension of the first tensor.

    Errors: UnfitData (a TypeError) when there is no tensor with one.
    """
    size = ignorant_find_batch_size(data)
    if size is None:
        raise UnfitData(
            f"there is no batch size in {kind_of(data)} like this",
            "it is the first dimension of the first tensor, and there is none",
            "give a batch with at least one tensor of at least one dimension",
        )
    return size


def ignorant_find_batch_size(data: Any) -> int | None:
    """Give the first dimension of the first tensor; None when there is none."""
    tensor = _first_tensor(data)
    return None if tensor is None or tensor.dim() == 0 else tensor.shape[0]


def find_device(data: Any) -> torch.device | None:
    """Give the device of the first tensor; None when there is none."""
    tensor = _first_tensor(data)
    return None if tensor is None else tensor.device


def get_data_structure(data: Any) -> Any:
    """Put shape and dtype in the place of every tensor."""
    return map_tensors(lambda one: TensorInformation(one.shape, one.dtype), data)


def initialize_tensors(data_structure: Any) -> Any:
    """Put an empty tensor in the place of every ``TensorInformation``."""
    return recursively_apply(
        lambda one: torch.empty(*one.shape, dtype=one.dtype),
        data_structure,
        test_type=is_tensor_information,
    )


def convert_to_fp32(tensor: Any) -> Any:
    """Make every half-precision tensor float32."""
    return map_tensors(half_to_full, tensor)


def convert_outputs_to_fp32(model_forward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function so that half-precision tensors in its result are float32."""

    @functools.wraps(model_forward)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return convert_to_fp32(model_forward(*args, **kwargs))

    return forward


def listify(data: Any) -> Any:
    """Put nested lists of numbers in the place of every tensor."""
    return map_tensors(lambda one: half_to_full(one).tolist(), data)


def listed(value: Any) -> list[Any]:
    """Make a list of one value, of many, or of none."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple, set)) else [value]


def _first_tensor(data: Any) -> Tensor | None:
    if isinstance(data, Tensor):
        return data
    items = data.values() if isinstance(data, Mapping) else data
    if isinstance(data, (Mapping, list, tuple)):
        for one in items:
            found = _first_tensor(one)
            if found is not None:
                return found
    return None


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", str(function))

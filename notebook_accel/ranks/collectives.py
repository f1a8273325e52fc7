"""What ranks say to each other: functions of a tree of tensors and a world.

A tree is a tensor, or nested lists, tuples, named tuples and mappings of trees. In a world of one
every function gives the shapes and types that it gives among many.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from notebook_accel.errors import CannotPadNestedTensorWarning, ConfigError
from notebook_accel.ranks import watch
from notebook_accel.ranks.alike import check_alike
from notebook_accel.ranks.parcel import gather_tensors
from notebook_accel.ranks.world import World

REDUCTIONS = ("sum", "mean", "max", "min", "none")


def map_tree(
    function: Callable[[Any], Any], tree: Any, is_leaf: Callable[[Any], bool] | None = None
) -> Any:
    """Apply ``function`` to every leaf; containers keep their types.

    ``is_leaf`` may call a container a leaf.
    """
    if isinstance(tree, Tensor) or (is_leaf is not None and is_leaf(tree)):
        return function(tree)
    if isinstance(tree, (list, tuple)):
        items = [map_tree(function, item, is_leaf) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    if isinstance(tree, MutableMapping):
        mapped = copy.copy(tree)
        for key, value in tree.items():
            mapped[key] = map_tree(function, value, is_leaf)
        return mapped
    return function(tree)


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """Apply ``function`` to every tensor; other leaves stay as they are."""
    return map_tree(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def tensors_of(tree: Any) -> list[Tensor]:
    """List the tensors of ``tree``, in the order in which ``map_tensors`` comes to them."""
    found: list[Tensor] = []
    map_tensors(found.append, tree)
    return found


def bytes_of(tensor: Tensor) -> memoryview:
    """Give the bytes of ``tensor``: its own memory, where that is the CPU's and has no gaps."""
    flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return memoryview(flat.numpy())  # type: ignore[arg-type]


def half_to_full(tensor: Tensor) -> Tensor:
    """Give a half-precision tensor in float32, any other as it is."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def gather(tree: Any, world: World) -> Any:
    """Concatenate every tensor over the ranks along dimension 0, in rank order.

    Shapes: ``[n, ...]`` on each rank gives ``[size * n, ...]``; a 0-d tensor gives ``[size]``.
    Ranks:  all ranks call it, with equal shapes; all get the whole.
    """
    _check("gather", tree, world)
    gathered = iter(gather_tensors(tensors_of(tree), world))
    return map_tensors(lambda _: next(gathered), tree)


def gather_rows(tensors: list[Tensor], sizes: list[list[int]], world: World) -> list[list[Tensor]]:
    """Gather tensors that differ in dimension 0; gives for each tensor its part of each rank.

    ``sizes`` says for each tensor how many rows each rank brings, the same on all ranks.

    Ranks: all ranks call it.
    """
    even = [
        one if one.shape[0] == max(rows) else _grown(one, 0, max(rows), 0, first=False)
        for one, rows in zip(tensors, sizes, strict=True)
    ]
    return [
        [part[:n] for part, n in zip(joined.tensor_split(world.size), rows, strict=True)]
        for joined, rows in zip(gather_tensors(even, world), sizes, strict=True)
    ]


def gather_object(obj: Any, world: World) -> list[Any]:
    """Collect one picklable object a rank; lists are joined into one list.

    Ranks: all ranks call it; all get the whole.
    """
    every = all_objects(obj, world)
    if all(isinstance(one, list) for one in every):
        return [item for one in every for item in one]
    return every


def all_objects(obj: Any, world: World) -> list[Any]:
    """Every rank's picklable object, in rank order.

    Ranks: all ranks call it.
    """
    if world.size == 1:
        return [obj]
    every: list[Any] = [None] * world.size
    watch.all_gather_object(every, obj)
    return every


def reduce(tree: Any, world: World, reduction: str = "sum", scale: float = 1.0) -> Any:
    """Combine every tensor elementwise over the ranks; the input is not changed.

    ``reduction`` is "sum", "mean", "max" or "min" ("none" is a sum that nobody divides).
    The mean of integers is a float; the sum of booleans counts. The result is multiplied by
    ``scale``.

    Ranks: all ranks call it, with equal shapes; all get the result.
    """
    if reduction not in REDUCTIONS:
        raise ConfigError(
            f"reduction={reduction!r} is unknown",
            "tensors can be combined over ranks by: " + ", ".join(REDUCTIONS),
            'write reduction="sum" or reduction="mean"',
        )
    _check("reduce", tree, world)
    return map_tensors(lambda tensor: _reduce_tensor(tensor, world, reduction, scale), tree)


def broadcast(tree: Any, world: World, from_process: int = 0) -> Any:
    """Give every rank the tensors of rank ``from_process``; the input is not changed.

    Ranks: all ranks call it, with equal shapes and dtypes.
    """
    _check("broadcast", tree, world)
    return map_tensors(lambda tensor: _broadcast_tensor(tensor, world, from_process), tree)


def pad_across_processes(
    tree: Any, world: World, dim: int = 0, pad_index: int = 0, pad_first: bool = False
) -> Any:
    """Lengthen dimension ``dim`` of every tensor to the longest rank's, with ``pad_index``.

    Tensors that have no such dimension stay as they are, and so do nested ones (a warning).

    Ranks: all ranks call it.
    """

    def pad(tensor: Tensor) -> Tensor:
        if tensor.is_nested:
            warnings.warn(
                "pad_across_processes leaves a nested tensor as it is: it has no one length.",
                CannotPadNestedTensorWarning,
                stacklevel=3,
            )
            return tensor
        if not -tensor.dim() <= dim < tensor.dim() or world.size == 1:
            return tensor
        longest = max(rank_sizes(tensor.shape[dim], world))
        if tensor.shape[dim] == longest:
            return tensor
        return _grown(tensor, dim, longest, pad_index, pad_first)

    _check("pad_across_processes", tree, world, dim)
    return map_tensors(pad, tree)


def rank_sizes(size: int, world: World) -> list[int]:
    """Every rank's number ``size``, in rank order.

    Ranks: all ranks call it.
    """
    sizes: list[int] = gather_tensors([torch.tensor([size])], world)[0].tolist()
    return sizes


def _check(operation: str, tree: Any, world: World, free_dim: int | None = None) -> None:
    """Compare what ranks bring, in debug mode."""
    if world.checks:
        check_alike(operation, tensors_of(tree), world.size, free_dim)


def _grown(tensor: Tensor, dim: int, size: int, fill: int, first: bool) -> Tensor:
    shape = list(tensor.shape)
    shape[dim] = size
    grown = tensor.new_full(shape, fill)
    start = size - tensor.shape[dim] if first else 0
    grown.narrow(dim, start, tensor.shape[dim]).copy_(tensor)
    return grown


def _reduce_tensor(tensor: Tensor, world: World, reduction: str, scale: float) -> Tensor:
    dtype = tensor.dtype
    sent = tensor.detach().to(world.wire)
    if reduction == "mean":
        sent = sent if sent.is_floating_point() or sent.is_complex() else sent.float()
        dtype = sent.dtype
    elif not (sent.is_floating_point() or sent.is_complex()):
        dtype = torch.int64 if dtype == torch.bool and reduction in ("sum", "none") else dtype
        sent = sent.long()
    sent = sent.clone(memory_format=torch.contiguous_format)
    if world.size > 1:
        operation = {"max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
        watch.all_reduce(sent, operation.get(reduction, dist.ReduceOp.SUM))
    if reduction == "mean":
        sent = sent / world.size
    if scale != 1.0:
        sent = sent * scale
        dtype = sent.dtype
    return sent.to(device=tensor.device, dtype=dtype)


def _broadcast_tensor(tensor: Tensor, world: World, source: int) -> Tensor:
    copied = tensor.detach().clone(memory_format=torch.contiguous_format)
    if world.size == 1 or tensor.numel() == 0:
        return copied
    flat = copied.view(-1).view(torch.uint8).to(world.wire)
    watch.broadcast(flat, source)
    return flat.to(tensor.device).view(tensor.dtype).view(tensor.shape)

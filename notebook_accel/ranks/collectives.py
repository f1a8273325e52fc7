"""What ranks say to each other: functions of a tree of tensors and a world.

A tree is a tensor, or nested lists, tuples, named tuples and mappings of trees. Numbers and numpy's
arrays become tensors on this rank's device; strings and None stay where they are beside those. In a
world of one every function gives the shapes and types that it gives among many.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from notebook_accel.config.words import kind_of
from notebook_accel.errors import CannotPadNestedTensorWarning, ConfigError, RuntimeMisuse
from notebook_accel.ranks import watch
from notebook_accel.ranks.alike import check_alike
from notebook_accel.ranks.parcel import gather_tensors
from notebook_accel.ranks.plain import as_tensor, is_like_a_tensor
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


class NoTensors(RuntimeMisuse, TypeError):
    """A collective was given what ranks cannot combine."""


def in_tensors(operation: str, tree: Any, device: torch.device) -> Any:
    """Make a tensor of every number and array of ``tree``, for the collective ``operation``.

    Errors: NoTensors (a TypeError) for other objects, and for strings alone.
    """
    if isinstance(tree, Tensor):
        return tree
    others: list[Any] = []

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf
        if is_like_a_tensor(leaf):
            return as_tensor(leaf, device)
        others.append(leaf)
        return leaf

    converted = map_tree(convert, tree)
    strange = [one for one in others if one is not None and not isinstance(one, (str, bytes))]
    if strange or (others and not tensors_of(converted)):
        given = (strange or others)[0]
        within = "" if given is tree else f", in {kind_of(tree)}"
        raise NoTensors(
            f"{operation} got {'None' if given is None else kind_of(given)}{within}",
            "ranks combine tensors, numbers and arrays; strings and None can only stay where they "
            "are in a tree that holds some",
            "give a tensor or a number; notebook_accel.utils.gather_object collects what every "
            "rank has of anything else, and broadcast_object_list spreads it",
        )
    return converted


def gather(tree: Any, world: World) -> Any:
    """Concatenate every tensor over the ranks along dimension 0, in rank order.

    Shapes: ``[n, ...]`` on each rank gives ``[size * n, ...]``; a 0-d tensor gives ``[size]``.
    Ranks:  all ranks call it, with equal shapes; all get the whole.
    Errors: NoTensors (a TypeError) for what holds no tensors, numbers or arrays.
    """
    tree = in_tensors("gather", tree, world.device)
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

    ``reduction`` is "sum", "mean", "max" or "min" ("none" is a sum that nobody divides). As in
    torch's own sums, sums of integers and booleans are int64. The mean of integers is a float:
    float64 of 32 and 64 bits, float32 of fewer. The result is multiplied by ``scale``.

    Ranks: all ranks call it, with equal shapes; all get the result.
    Errors: NoTensors (a TypeError) for what holds no tensors, numbers or arrays, and for numbers
    that have no such combination.
    """
    if reduction not in REDUCTIONS:
        raise ConfigError(
            f"reduction={reduction!r} is unknown",
            "tensors can be combined over ranks by: " + ", ".join(REDUCTIONS),
            'write reduction="sum" or reduction="mean"',
        )
    tree = in_tensors("reduce", tree, world.device)
    map_tensors(lambda tensor: _check_reducible(tensor, reduction), tree)
    _check("reduce", tree, world)
    return map_tensors(lambda tensor: _reduce_tensor(tensor, world, reduction, scale), tree)


def broadcast(tree: Any, world: World, from_process: int = 0) -> Any:
    """Give every rank the tensors of rank ``from_process``; the input is not changed.

    Ranks: all ranks call it, with equal shapes and dtypes.
    Errors: NoTensors (a TypeError) for what holds no tensors, numbers or arrays.
    """
    tree = in_tensors("broadcast", tree, world.device)
    _check("broadcast", tree, world)
    return map_tensors(lambda tensor: _broadcast_tensor(tensor, world, from_process), tree)


def pad_across_processes(
    tree: Any, world: World, dim: int = 0, pad_index: int = 0, pad_first: bool = False
) -> Any:
    """Lengthen dimension ``dim`` of every tensor to the longest rank's, with ``pad_index``.

    Tensors that have no such dimension stay as they are, and so do nested ones (a warning).

    Ranks: all ranks call it.
    Errors: NoTensors (a TypeError) for what holds no tensors, numbers or arrays.
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

    tree = in_tensors("pad_across_processes", tree, world.device)
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


def _check_reducible(tensor: Tensor, reduction: str) -> None:
    """Refuse what torch has no such combination of."""
    kind = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_complex() and reduction in ("max", "min"):
        raise NoTensors(
            f'reduce got a {kind} tensor for "{reduction}"',
            "complex numbers have no order, so none of them is the largest",
            "reduce tensor.abs(), or tensor.real and tensor.imag",
        )
    if tensor.is_floating_point() and tensor.dtype.itemsize == 1:
        raise NoTensors(
            f"reduce got a {kind} tensor",
            "torch does not add or compare numbers of 8 bits: they only store what was computed in "
            "a wider dtype",
            "reduce tensor.float(), and convert the result",
        )


def _reduce_tensor(tensor: Tensor, world: World, reduction: str, scale: float) -> Tensor:
    sent, dtype = tensor.detach().to(world.wire), tensor.dtype
    is_whole = not (sent.is_floating_point() or sent.is_complex())
    if is_whole:
        # In 64 bits, as torch adds; what becomes a float has room for all that fits into the input.
        wide = dtype.itemsize >= 4 and tensor.device.type != "mps"
        as_float = torch.float64 if wide else torch.float32
        sent = sent.long()
        if reduction in ("sum", "none"):
            dtype = torch.int64
        if reduction == "mean" or scale != 1.0:
            dtype = as_float
    elif reduction == "mean":
        sent = half_to_full(sent)  # whose sum a half may not hold
    sent = sent.clone(memory_format=torch.contiguous_format)
    if world.size > 1:
        operation = {"max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
        watch.all_reduce(sent, operation.get(reduction, dist.ReduceOp.SUM))
    if is_whole and dtype.is_floating_point:
        sent = sent.double()
    if reduction == "mean":
        sent = sent / world.size
    if scale != 1.0:
        sent = sent * scale
    return sent.to(dtype).to(tensor.device)


def _broadcast_tensor(tensor: Tensor, world: World, source: int) -> Tensor:
    copied = tensor.detach().clone(memory_format=torch.contiguous_format)
    if world.size == 1 or tensor.numel() == 0:
        return copied
    flat = copied.view(-1).view(torch.uint8).to(world.wire)
    watch.broadcast(flat, source)
    return flat.to(tensor.device).view(tensor.dtype).view(tensor.shape)

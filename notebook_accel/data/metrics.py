"""Gathering for metrics: every sample exactly once, whatever was repeated to make ranks even."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from notebook_accel.data.batch import num_rows
from notebook_accel.data.loader import Pass, Passes
from notebook_accel.data.shard import WHOLE, Share
from notebook_accel.events import rails
from notebook_accel.events.lines import persons_frame
from notebook_accel.ranks.collectives import all_objects, gather_rows, map_tree, tensors_of
from notebook_accel.ranks.parcel import gather_tensors
from notebook_accel.ranks.world import World

_PLAIN = (str, bytes, int, float, complex, type(None))


def gather_for_metrics(
    tree: Any,
    world: World,
    passes: Passes,
    use_gather_object: bool = False,
    readers: Sequence[int] = (),
) -> Any:
    """Gather a tree of tensors and objects over the ranks, without the repeated samples.

    Tensors with one row a sample of the current batch are joined along dimension 0. A list of
    plain objects (or a tuple of strings) is one row a sample too. Any other object gives a list
    with one entry a rank. ``use_gather_object`` treats every list as rows, whatever it holds.
    ``readers`` says for each rank which of the readers of data it is, where several are one: the
    first of them speaks.

    Ranks: all ranks call it, with trees of the same structure.
    """
    if isinstance(tree, Tensor):
        return _gather_tensors([tree], _spread(_share_of(tree, passes), readers), world)[0]
    if type(tree) in (tuple, list) and _are_tensors(tree):
        # Most often it is such a pair, and this is called once a batch.
        return type(tree)(
            _gather_tensors(list(tree), _spread(_share_of(tree, passes), readers), world)
        )
    tensors: list[Tensor] = []
    objects: list[Any] = []

    def mark(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            tensors.append(leaf)
            return leaf
        objects.append(leaf)
        return _Object(len(objects) - 1)

    marked = map_tree(mark, tree, is_leaf=lambda one: _is_rows(one, use_gather_object))
    share = _spread(_share_of(tree, passes), readers)
    gathered = iter(_gather_tensors(tensors, share, world))
    every = all_objects(objects, world) if objects else []

    def fetch(leaf: Any) -> Any:
        if isinstance(leaf, _Object):
            return _join([one[leaf.index] for one in every], share)
        return next(gathered)

    return map_tree(fetch, marked)


def _spread(share: Share | None, readers: Sequence[int]) -> Share | None:
    """Say of each rank what a share says of each reader; only one rank a reader counts."""
    if not readers:
        return share
    counts = [reader not in readers[:rank] for rank, reader in enumerate(readers)]
    if share is None:
        return Share((WHOLE,) * len(readers), tuple(map(int, counts)))
    real = [share.real[reader] * speaks for reader, speaks in zip(readers, counts, strict=True)]
    return Share(tuple(share.rows[reader] for reader in readers), tuple(real))


def _are_tensors(items: Any) -> bool:
    for one in items:  # a loop costs less than all()
        if not isinstance(one, Tensor):
            return False
    return bool(items)


class _Object:
    """Stands in a tree for an object that travels in the one message of objects."""

    def __init__(self, index: int) -> None:
        self.index = index


def _is_rows(items: Any, all_lists: bool) -> bool:
    """Whether ``items`` holds one plain object a sample, rather than being a structure."""
    if isinstance(items, list):
        return all_lists or all(isinstance(item, _PLAIN) for item in items)
    return type(items) is tuple and all(isinstance(item, str) for item in items)


def _share_of(tree: Any, passes: Passes) -> Share | None:
    """The share of the loop that ``tree`` comes from.

    With several loops in progress it is the one whose own batch is gathered, else the newest whose
    batch has as many rows.
    """
    if not passes.active:
        _warn_of_the_end(tree, passes)
        return None
    current = passes.active[-1]
    if len(passes.active) > 1:
        given, rows = tensors_of(tree), num_rows(tree)
        newest_first = passes.active[::-1]
        owners = [one for one in newest_first if _holds(one, given)]
        alike = [one for one in newest_first if num_rows(one.batch) == rows]
        current = (owners or alike or newest_first)[0]
    return current.share


def _warn_of_the_end(tree: Any, passes: Passes) -> None:
    """Tell who gathers after the loop what belongs to a whole pass, repeats included."""
    ended = passes.ended
    if ended is None or not ended.repeated or ended.num_batches < 2:
        return
    if all(tensor.dim() == 0 or tensor.shape[0] != ended.rows for tensor in tensors_of(tree)):
        return
    rails.warn(
        "late-gather",
        f"gather_for_metrics got {ended.rows} rows after the loop: all that this rank read",
        "samples that were repeated to make ranks even can be told only batch by batch; they are "
        "still in the result, and the order of samples is not the dataset's",
        "gather each batch inside the loop, and concatenate what comes back",
        *rails.line_of(persons_frame(sys._getframe(1))),
    )


def _holds(one: Pass, tensors: list[Tensor]) -> bool:
    own = {tensor.data_ptr() for tensor in tensors_of(one.batch)}
    return any(tensor.data_ptr() in own for tensor in tensors)


def _join(parts: list[Any], share: Share | None) -> Any:
    """Join what the ranks brought for one object of the tree."""
    if not isinstance(parts[0], (list, tuple)):
        return parts
    if share is not None:
        parts = [
            part[: _kept(len(part), rows, real)]
            for part, rows, real in zip(parts, share.rows, share.real, strict=True)
        ]
    return type(parts[0])(item for part in parts for item in part)


def _kept(num: int, rows: int, real: int) -> int:
    if rows == WHOLE:
        return 0 if real == 0 else num
    return real if num == rows else num


def _gather_tensors(tensors: list[Tensor], share: Share | None, world: World) -> list[Tensor]:
    if share is None or share.even or not tensors:
        return gather_tensors(tensors, world)
    rows = [one if one.dim() else one.reshape(1) for one in tensors]
    num_rows = [one.shape[0] for one in rows]
    sizes = [[num] * world.size for num in num_rows]
    if share.rows[0] == WHOLE or len(set(share.rows)) > 1:  # ranks may hold unlike numbers: ask
        asked = gather_tensors([torch.tensor(num_rows)], world)[0]
        sizes = asked.view(world.size, -1).T.tolist()
    gathered = []
    for one, parts in zip(tensors, gather_rows(rows, sizes, world), strict=True):
        if one.dim():
            parts = [
                part[: _kept(len(part), given, real)]
                for part, given, real in zip(parts, share.rows, share.real, strict=True)
            ]
        gathered.append(torch.cat(parts))
    return gathered

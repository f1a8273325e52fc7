"""Gathering for metrics: every sample exactly once, whatever was repeated to make ranks even."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from notebook_accel.data.batch import num_rows
from notebook_accel.data.loader import Pass, Passes
from notebook_accel.data.rows import ARRAY, ROWS, TENSOR, Rows, length
from notebook_accel.data.shard import WHOLE, Share
from notebook_accel.errors import DistributedOperationException
from notebook_accel.events import rails
from notebook_accel.events.lines import persons_frame
from notebook_accel.ranks.collectives import all_objects, gather_rows, map_tree, tensors_of
from notebook_accel.ranks.parcel import gather_tensors
from notebook_accel.ranks.plain import as_tensor, is_array
from notebook_accel.ranks.world import World

_LONGEST_OUTLINE = 100


def gather_for_metrics(
    tree: Any,
    world: World,
    passes: Passes,
    use_gather_object: bool = False,
    readers: Sequence[int] = (),
) -> Any:
    """Gather a tree of tensors and objects over the ranks, without the repeated samples.

    Tensors and arrays with one row a sample of the current batch are joined along dimension 0. A
    list as long as the batch, whose items are no tensors, is one row a sample too, whatever its
    rows are (so are a tuple of strings, and one of dicts with the same keys). Tuples, dicts and
    other lists are structures of such parts. A number, a string or None is one value a rank: they
    make a list. With ``use_gather_object`` every list, tensor and array is a list of rows, which
    may have any shapes. ``readers`` says for each rank which of the readers of data it is, where
    several are one: the first of them speaks.

    Ranks: all ranks call it, with trees of the same structure.
    Errors: NoRows (a TypeError) for anything else.
    """
    if not use_gather_object:
        if isinstance(tree, Tensor):
            return _gather_tensors([tree], _spread(_share_of(tree, passes), readers), world)[0]
        if type(tree) in (tuple, list) and _are_tensors(tree):
            # Most often it is such a pair, and this is called once a batch.
            share = _spread(_share_of(tree, passes), readers)
            return type(tree)(_gather_tensors(list(tree), share, world))
    return _gather_tree(tree, world, _pass_of(tree, passes), use_gather_object, readers)


def _gather_tree(
    tree: Any, world: World, one: Pass | None, every_list: bool, readers: Sequence[int]
) -> Any:
    """Gather what is not only tensors: those together, then all else in one message."""
    share = _spread(None if one is None else one.share, readers)
    rows = _rows_of(one, share, world.rank, every_list)
    tensors: list[Tensor] = []
    objects: list[Any] = []

    def mark(leaf: Any) -> _Place:
        kind = rows.kind(leaf)
        if kind == TENSOR:
            tensors.append(leaf)
        elif kind == ARRAY:
            tensors.append(as_tensor(leaf, torch.device("cpu")))
        else:
            is_listed = every_list and kind == ROWS and not isinstance(leaf, (list, tuple))
            objects.append(_packed(list(leaf) if is_listed else leaf, world))
        return _Place(kind, len(objects) - 1)

    marked = map_tree(mark, tree, is_leaf=rows.are)
    every = _exchanged(marked, objects, world) if objects else []
    gathered = iter(_gather_tensors(tensors, share, world))

    def fetch(place: _Place) -> Any:
        if place.kind in (TENSOR, ARRAY):
            joined = next(gathered)
            return joined if place.kind == TENSOR else joined.numpy()
        parts = [_unpacked(brought[place.index], world) for brought in every]
        return _join(parts, share, world) if place.kind == ROWS else parts

    return map_tree(fetch, marked)


def _rows_of(one: Pass | None, share: Share | None, rank: int, every_list: bool) -> Rows:
    """Say how what belongs to the batch of ``one`` is read."""
    if one is None:
        return Rows(None, every_list)
    num = WHOLE if share is None else share.rows[rank]
    # Columns they are also where there are as many as samples.
    collated = one.loader.source.collate_fn is default_collate
    return Rows(
        (num_rows(one.batch) or None) if num == WHOLE else num,
        every_list,
        one.batch if collated else None,
    )


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


@dataclass(frozen=True)
class _Place:
    """Stands in a tree for what is gathered: of what kind it is, and which of the objects."""

    kind: str
    index: int


@dataclass(frozen=True)
class _OnDevice:
    """Travels for a tensor of the sender's device, to become one of the receiver's."""

    tensor: Tensor


def _packed(leaf: Any, world: World) -> Any:
    """Give what travels for an object: tensors in it without graph, and with their rows only."""

    def pack(part: Any) -> Any:
        if not isinstance(part, Tensor):
            return part
        part = part.detach()
        if world.size == 1:
            return part
        return part.clone() if part.is_cpu else _OnDevice(part.cpu())

    return map_tree(pack, leaf)


def _unpacked(brought: Any, world: World) -> Any:
    if world.device.type == "cpu" or world.size == 1:
        return brought
    return map_tree(
        lambda part: part.tensor.to(world.device) if isinstance(part, _OnDevice) else part, brought
    )


def _exchanged(marked: Any, objects: list[Any], world: World) -> list[list[Any]]:
    """Give every rank's objects.

    Errors: DistributedOperationException, on all ranks, where trees are not of one structure.
    """
    every = all_objects((_outline(marked), objects), world)
    outlines = [outline for outline, _ in every]
    if len(set(outlines)) > 1:
        told = [f"rank {rank} {one[:_LONGEST_OUTLINE]}" for rank, one in enumerate(outlines)]
        raise DistributedOperationException(
            "gather_for_metrics got trees that do not fit together: " + ", ".join(told),
            "parts are joined one by one, so every rank must bring the same ones; a list as long "
            "as the batch has one entry a sample, other lists of lists are structures",
            "give lists with one entry a sample, in a tuple or dict if there are several, or "
            "use_gather_object=True, for which every list is one",
        )
    return [brought for _, brought in every]


def _outline(marked: Any) -> str:
    """Write down the structure of a tree, as it must be on all ranks."""
    if isinstance(marked, Mapping):
        return "{" + ", ".join(f"{key}: {_outline(one)}" for key, one in marked.items()) + "}"
    if isinstance(marked, (list, tuple)):
        left, right = "[]" if isinstance(marked, list) else "()"
        return left + ", ".join(map(_outline, marked)) + right
    return str(marked.kind)


def _share_of(tree: Any, passes: Passes) -> Share | None:
    one = _pass_of(tree, passes)
    return None if one is None else one.share


def _pass_of(tree: Any, passes: Passes) -> Pass | None:
    """The loop that ``tree`` comes from.

    With several loops in progress it is the one whose own batch is gathered, else the newest whose
    batch has as many rows.
    """
    if not passes.active:
        _warn_of_the_end(tree, passes)
        return None
    current = passes.active[-1]
    if len(passes.active) > 1:
        given, rows = tensors_of(tree), {num_rows(tree), length(tree)}
        newest_first = passes.active[::-1]
        owners = [one for one in newest_first if _holds(one, given)]
        alike = [one for one in newest_first if num_rows(one.batch) in rows]
        current = (owners or alike or newest_first)[0]
    return current


def _warn_of_the_end(tree: Any, passes: Passes) -> None:
    """Tell who gathers after the loop what belongs to a whole pass, repeats included."""
    ended = passes.ended
    if ended is None or not ended.repeated or ended.num_batches < 2:
        return
    if ended.rows not in _lengths(tree):
        return
    rails.warn(
        "late-gather",
        f"gather_for_metrics got {ended.rows} rows after the loop: all that this rank read",
        "samples that were repeated to make ranks even can be told only batch by batch; they are "
        "still in the result, and the order of samples is not the dataset's",
        "gather each batch inside the loop, and concatenate what comes back",
        *rails.line_of(persons_frame(sys._getframe(1))),
    )


def _lengths(tree: Any) -> set[int | None]:
    """The lengths of all tensors, arrays and lists in ``tree``."""
    found: set[int | None] = set()

    def note(part: Any) -> bool:
        found.add(length(part))
        return False

    map_tree(note, tree, is_leaf=note)
    return found


def _holds(one: Pass, tensors: list[Tensor]) -> bool:
    own = {tensor.data_ptr() for tensor in tensors_of(one.batch)}
    return any(tensor.data_ptr() in own for tensor in tensors)


def _join(parts: list[Any], share: Share | None, world: World) -> Any:
    """Join the rows that the ranks brought for one list of the tree."""
    if share is not None:
        _warn_of_uncut(parts, share, world)
        parts = [
            part[: _kept(len(part), rows, real)]
            for part, rows, real in zip(parts, share.rows, share.real, strict=True)
        ]
    if is_array(parts[0]):  # of strings, say
        return parts[0] if len(parts) == 1 else importlib.import_module("numpy").concatenate(parts)
    return type(parts[0])(item for part in parts for item in part)


def _warn_of_uncut(parts: list[Any], share: Share, world: World) -> None:
    """Tell who filtered a list of samples that repeats are still in it."""
    if world.rank != 0 or WHOLE in share.rows:
        return
    repeats = sum(share.rows) - sum(share.real)
    for rank, (part, rows, real) in enumerate(zip(parts, share.rows, share.real, strict=True)):
        if real < rows and len(part) not in (0, 1, rows):
            rails.warn(
                "uncut-rows",
                f"gather_for_metrics got a list of {len(part)} entries from rank {rank}, for a "
                f"batch of {rows} samples",
                f"{repeats} samples of the last batch are repeated to make ranks even, and only "
                "of a list with one entry a sample can they be left out",
                "gather one entry a sample (None, where there is nothing to say), and filter what "
                "comes back",
                *rails.line_of(persons_frame(sys._getframe(1))),
            )
            return


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

"""Sequences cut up over the ranks of a group: batches into parts, and results together again."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from notebook_accel.errors import ConfigError, RuntimeMisuse
from notebook_accel.ranks import watch
from notebook_accel.ranks.collectives import bytes_of, map_tensors, map_tree, tensors_of

IGNORED = -100  # what cross entropy leaves out, and what a label beyond the end is


@dataclass(frozen=True)
class Group:
    """The ranks that share sequences: torch's group, and this rank's place in it.

    Messages travel from and to the device ``wire``.
    """

    group: Any
    rank: int
    size: int
    wire: torch.device

    @staticmethod
    def of(group: Any, wire: torch.device) -> Group:
        """Describe a group of torch's."""
        return Group(group, dist.get_rank(group), dist.get_world_size(group), wire)

    def part(self, tensor: Tensor, dim: int = 1) -> Tensor:
        """Cut this rank's part of ``tensor`` out.

        Errors: RuntimeMisuse for a length that does not divide.
        """
        length = tensor.shape[dim]
        if length % self.size:
            raise RuntimeMisuse(
                f"sequences of {length} tokens, to be divided over {self.size} ranks",
                f"{length} is not divisible by {self.size}, and ranks must have equally many",
                f"make sequences a multiple of {self.size} long in the dataset or collate_fn "
                f"(pad_to_multiple_of={self.size} in collators of transformers), or write "
                'SequenceParallel(pad={"input_ids": 0, "labels": -100})',
            )
        return tensor.chunk(self.size, dim)[self.rank].contiguous()

    def whole(self, tensor: Tensor, dim: int = 1) -> Tensor:
        """Join the parts of all ranks, without gradients.

        Ranks: all ranks of the group call it with equal shapes.
        """
        own = tensor.detach().to(self.wire).contiguous()
        parts = [torch.empty_like(own) for _ in range(self.size)]
        watch.all_gather(parts, own, group=self.group)
        return torch.cat(parts, dim).to(tensor.device)

    def all_alike(self, number: int) -> bool:
        """Tell whether all ranks of the group bring the same number.

        Ranks: all ranks of the group call it.
        """
        every = self.whole(torch.tensor([number]), 0)
        return bool((every == every[0]).all())


class Cutter:
    """Cuts the batches of one loader; ``length`` is that of the newest parts, ``rows`` their rows.

    ``fixed`` is the length that whole sequences promised to have; ``shifts`` says whether models
    may be given shifted labels, ``compares`` whether batches are compared between ranks.
    """

    def __init__(
        self,
        group: Group,
        pad: Mapping[Any, float] | None,
        fixed: int | None = None,
        shifts: Callable[[], bool] = lambda: False,
        compares: bool = True,
    ) -> None:
        self.length = 0
        self.rows = 0
        self._shifts = shifts
        self._group = group
        self._compares = compares
        self._pad = pad or {}
        self._fixed = fixed
        self._count = 0

    def __call__(self, batch: Any) -> Any:
        """Give this rank's part of ``batch``: of each tensor as long as the first in dimension 1.

        Ranks: all ranks of the group call it with the same batch.
        Errors: RuntimeMisuse for batches that differ, and lengths that do not divide.
        """
        batch = self._padded(batch)
        tensors = [one for one in tensors_of(batch) if one.dim() > 1]
        if not tensors:
            raise RuntimeMisuse(
                "a batch has no tensor with a dimension 1",
                f"sequences are cut there, over {self._group.size} ranks",
                "let the collate_fn stack sequences, [rows, tokens, ...]",
            )
        length = tensors[0].shape[1]
        self._check_alike(tensors)
        self._check_fixed(length)
        if self._shifts():
            batch = with_shifted_labels(batch, length)

        def cut(one: Tensor) -> Tensor:
            return self._group.part(one) if one.dim() > 1 and one.shape[1] == length else one

        parts = map_tensors(cut, batch)
        self.length, self.rows = length // self._group.size, tensors[0].shape[0]
        return parts

    def _check_alike(self, tensors: Sequence[Tensor]) -> None:
        """Compare the first batch, the second, the 4th, the 8th... with the other ranks'."""
        self._count += 1
        if not self._compares or self._count & (self._count - 1):
            return
        digest = 0
        for one in tensors:
            digest = zlib.crc32(f"{tuple(one.shape)}".encode(), digest)
            digest = zlib.crc32(bytes_of(one), digest)
        if not self._group.all_alike(digest):
            raise RuntimeMisuse(
                f"the {self._group.size} ranks that share sequences read different batches",
                "each takes its part of one and the same batch; a dataset or collate_fn that draws "
                "random numbers draws others on each rank",
                "write set_seed(...) before the loop, or let rank 0 read for all: "
                "DataLoaderConfiguration(dispatch_batches=True)",
            )

    def _check_fixed(self, length: int) -> None:
        if self._fixed not in (None, length):
            raise RuntimeMisuse(
                f"sequences of {length} tokens, where all have length={self._fixed}",
                "one length was promised (sp_seq_length with sp_seq_length_is_variable=False)",
                "pad sequences to it, or leave length out",
            )

    def _padded(self, batch: Any) -> Any:
        """Lengthen the entries that may be, to the next length that divides."""
        if not self._pad:
            return batch
        found: Any = batch.items() if isinstance(batch, Mapping) else enumerate(batch)
        entries = dict(found)
        missing = [key for key in self._pad if key not in entries]
        if missing:
            raise ConfigError(
                f"SequenceParallel(pad=...) names {missing[0]!r}, which a batch does not have",
                f"its entries are: {', '.join(map(repr, entries))}",
                "name entries of the batch by their keys, or by their places: {0: 0, 1: -100}",
            )
        filled = {key: self._lengthened(entries[key], fill) for key, fill in self._pad.items()}
        if isinstance(batch, Mapping):
            return _with_entries(batch, filled)
        return type(batch)(filled.get(index, one) for index, one in entries.items())

    def _lengthened(self, one: Tensor, fill: float) -> Tensor:
        missing = -one.shape[1] % self._group.size
        if not missing:
            return one
        rest = one.new_full((one.shape[0], missing, *one.shape[2:]), fill)
        return torch.cat([one, rest], 1)


def with_shifted_labels(batch: Any, length: int) -> Any:
    """Add ``shift_labels`` to a batch with ``labels``: for each token the label of the next one.

    Parts that were shifted after the cut would miss the label at their end.
    """
    if not isinstance(batch, Mapping) or "shift_labels" in batch:
        return batch
    labels = batch.get("labels")
    if not isinstance(labels, Tensor) or labels.dim() != 2 or labels.shape[1] != length:
        return batch
    return _with_entries(batch, {"shift_labels": shifted(labels)})


def shifted(labels: Tensor) -> Tensor:
    """Give for each token the label of the next one; the last has none."""
    return torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)


def joined(tree: Any, group: Group, length: int, rows: int) -> Any:
    """Put together what the ranks of a group have of the same samples, for a metric.

    Tensors with ``length`` tokens in dimension 1 become whole sequences; those with one value for
    each of ``rows`` stay, if all ranks have the same.

    Ranks: all ranks of the group call it with trees of the same structure.
    Errors: RuntimeMisuse, on all of them, where ranks have different values for a sample.
    """

    def join(one: Tensor) -> Tensor:
        if one.dim() > 1 and one.shape[1] == length:
            return group.whole(one)
        if one.dim() == 0 or one.shape[0] != rows:
            return one
        every = group.whole(one[None], 0)
        if not bool(((every == every[0]) | (every != every)).all()):
            raise RuntimeMisuse(
                f"gather_for_metrics got a tensor of shape {tuple(one.shape)} that differs between "
                "the ranks of one sequence",
                f"each of these {group.size} ranks has {length} tokens of the {rows} samples, and "
                "nobody could say what a sample's one value is",
                "gather values of tokens, [rows, tokens, ...], which are joined, and combine them "
                'after; or add up with accelerator.reduce(value, "sum")',
            )
        return one

    return map_tensors(join, tree)


@contextmanager
def cut_buffers(
    buffers: Iterable[Tensor], dims: Iterable[int], kept_cut: Iterable[Tensor], group: Group
) -> Iterator[int]:
    """Cut tensors in place inside the block; gives the length of a part.

    After the block they are whole again, except ``kept_cut``.

    Ranks: all ranks of the group enter it with the same tensors.
    Errors: ConfigError for dimensions that do not fit; RuntimeMisuse for lengths.
    """
    listed, where = list(buffers), list(dims)
    if len(listed) != len(where) or not listed:
        raise ConfigError(
            f"maybe_context_parallel got {len(listed)} buffers and {len(where)} buffer_seq_dims",
            "each tensor that is cut needs the dimension of its sequence",
            "write buffers=[x, y], buffer_seq_dims=[1, 1]",
        )
    lengths = {one.shape[dim] for one, dim in zip(listed, where, strict=True)}
    if len(lengths) > 1:
        raise ConfigError(
            f"maybe_context_parallel got sequences of {min(lengths)} and {max(lengths)} tokens",
            "tensors that are cut together belong to the same tokens",
            "name the dimension of the sequence for each tensor in buffer_seq_dims",
        )
    lasting = {id(one) for one in kept_cut}
    parts = [group.part(one, dim).clone() for one, dim in zip(listed, where, strict=True)]
    wholes = [None if id(one) in lasting else one.detach().clone() for one in listed]
    _put(listed, parts)
    try:
        yield parts[0].shape[where[0]]
    finally:
        _put(listed, wholes)


def _put(tensors: Sequence[Tensor], contents: Sequence[Tensor | None]) -> None:
    for one, content in zip(tensors, contents, strict=True):
        if content is not None:
            one.data = content


def _with_entries(batch: Mapping[Any, Any], entries: Mapping[Any, Any]) -> Any:
    """Give a copy of ``batch``, of its own type, with ``entries`` in it."""
    copied: Any = map_tree(lambda leaf: leaf, batch)
    for key, value in entries.items():
        copied[key] = value
    return copied

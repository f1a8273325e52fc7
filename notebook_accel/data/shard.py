"""Which samples a rank sees: index arithmetic, pure.

Everything here is computed alike on every rank, without a word between them: each rank walks
through all the batches, keeps its own, and knows what the others got (a ``Share``), so that
metrics can later count every sample exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice
from typing import Any

from notebook_accel.config.words import kind_of
from notebook_accel.errors import ConfigError, RuntimeMisuse

Batch = list[Any]
WHOLE = -1


@dataclass(frozen=True)
class Share:
    """One step of a pass: how many rows each rank's batch has, and how many are no repeats.

    The repeats that make ranks even come after the real rows of a batch. ``WHOLE`` in ``rows``
    stands for a ready-made batch of unknown size, of which all rows are real or (0) none.
    """

    rows: tuple[int, ...]
    real: tuple[int, ...]

    @property
    def even(self) -> bool:
        """Whether all ranks have the same known number of rows, all of them real."""
        return self.real == self.rows and self.rows[0] >= 0 and len(set(self.rows)) == 1


@dataclass(frozen=True)
class Rule:
    """How batches are dealt to ``size`` readers.

    ``batch_size`` None means that batches may have any size and are never cut. ``even`` completes
    the tail with samples from the start of the pass, so that all ranks take equally many steps.
    ``split`` cuts each batch into ``size`` parts instead of dealing whole batches round.
    """

    rank: int
    size: int
    batch_size: int | None
    drop_last: bool = False
    even: bool = True
    split: bool = False

    def __post_init__(self) -> None:
        if not self.split:
            return
        if self.batch_size is None:
            raise ConfigError(
                f"split_batches=True for a loader without a batch size, over {self.size} ranks",
                "each batch is cut into one equal part a rank; ready-made batches "
                "(batch_size=None), or those of a sampler without batch_size, may have any size",
                "give the DataLoader a batch_size, or leave split_batches out: whole batches are "
                "dealt to the ranks in turn",
            )
        if self.batch_size % self.size:
            raise ConfigError(
                f"split_batches with batch size {self.batch_size} over {self.size} ranks",
                "each batch is cut into one equal part a rank",
                f"use a batch size that is a multiple of {self.size}",
            )

    def num_batches(self, num_batches: int) -> int:
        """How many of ``num_batches`` this rank gets."""
        if self.split:
            return num_batches
        if self.drop_last:
            return num_batches // self.size
        if self.even:
            return -(-num_batches // self.size)
        return max(0, -(-(num_batches - self.rank) // self.size))

    def deal(self, batches: Iterable[Sequence[Any]]) -> Iterator[tuple[Batch, Share]]:
        """Yield this rank's batches, each with what all ranks got at that step."""
        rank = self.rank
        for group, share in self.groups(batches):
            if rank < len(group) and group[rank]:
                yield group[rank], share

    def groups(
        self, batches: Iterable[Sequence[Any]], first: list[Batch] | None = None
    ) -> Iterator[tuple[list[Batch], Share]]:
        """Yield the batches of each step, one a rank, with their share.

        A rank that gets nothing at the last step is left out at the end, or has an empty batch.
        ``first`` is the first step of the pass, if ``batches`` are only the rest of it.
        """
        if self.split:
            assert self.batch_size is not None
            size = self.batch_size // self.size
            cut = (_cut(list(batch), size, self.size) for batch in batches)
            return self._complete_groups(_Groups(cut), size, first or [])
        groups = _Groups(_grouped(batches, self.size))
        return self._complete_groups(groups, self.batch_size, first or [])

    def _complete_groups(
        self, groups: _Groups, batch_size: int | None, first: list[Batch]
    ) -> Iterator[tuple[list[Batch], Share]]:
        """Yield groups of ``size`` batches; only the last group may need completion."""
        rows = () if batch_size is None else (batch_size,) * self.size
        full = Share(rows, rows)
        for group in groups:
            if rows and len(group) == self.size and _all_full(group, rows[0]):
                first = first or group
                yield group, full
            elif len(group) == self.size and (batch_size is None or not groups.ended()):
                # a sampler of batches of many sizes, in the middle of its stream
                first = first or group
                lengths = tuple(map(len, group))
                yield group, Share(lengths, lengths)
            elif self.drop_last:
                return
            else:
                tail = self._complete(group, first or group, batch_size) if self.even else group
                real = _real_rows(group, tail)
                absent = (0,) * (self.size - len(tail))
                yield tail, Share((*map(len, tail), *absent), (*real, *absent))

    def _complete(
        self, group: list[Batch], first: list[Batch], batch_size: int | None
    ) -> list[Batch]:
        """Fill the last group up with what the pass began with, round and round if it is short."""
        if batch_size is None:
            return list(islice(chain(group, cycle(first)), self.size))
        samples = chain(chain.from_iterable(group), cycle(chain.from_iterable(first)))
        return _cut(list(islice(samples, batch_size * self.size)), batch_size, self.size)


class _Groups:
    """An iterator that can say whether it has ended."""

    def __init__(self, groups: Iterator[list[Batch]]) -> None:
        self._groups = groups

    def __iter__(self) -> Iterator[list[Batch]]:
        return self

    def __next__(self) -> list[Batch]:
        return next(self._groups)

    def ended(self) -> bool:
        """Look one group ahead."""
        try:
            following = next(self._groups)
        except StopIteration:
            return True
        self._groups = chain([following], self._groups)
        return False


def _grouped(batches: Iterable[Sequence[Any]], size: int) -> Iterator[list[Batch]]:
    batches = iter(batches)
    while group := [list(batch) for batch in islice(batches, size)]:
        yield group


def _cut(samples: Batch, batch_size: int, size: int) -> list[Batch]:
    return [samples[i * batch_size : (i + 1) * batch_size] for i in range(size)]


def _all_full(group: list[Batch], batch_size: int) -> bool:
    return all(len(batch) == batch_size for batch in group)


def _real_rows(group: list[Batch], tail: list[Batch]) -> tuple[int, ...]:
    """How many rows of each batch of ``tail`` come from ``group``: its samples lie in front."""
    left = sum(map(len, group))
    real = []
    for batch in tail:
        real.append(min(left, len(batch)))
        left -= real[-1]
    return tuple(real)


def distributed_sampler_shares(
    num_samples: int, size: int, batch_size: int, drop_last: bool
) -> Iterator[Share]:
    """What ranks get at each step from torch's DistributedSampler over ``num_samples``.

    Rank r reads items r, r + size, ...; the list is lengthened to a multiple of ``size`` (or
    shortened, by the sampler's own drop_last, before it comes here).
    """
    per_rank = -(-num_samples // size)
    for start in range(0, per_rank, batch_size):
        rows = min(batch_size, per_rank - start)
        if rows < batch_size and drop_last:
            return
        last = range(start, start + rows)
        real = tuple(sum(i * size + rank < num_samples for i in last) for rank in range(size))
        yield Share((rows,) * size, real)


def split_between(inputs: Any, rank: int, size: int, padding: bool = False) -> Any:
    """Give rank ``rank`` its contiguous part of a sequence, tensor, array, or dict of those.

    A dataset of columns (Hugging Face's) stays one. The first ranks get one item more when it does
    not come out even; ``padding`` repeats the last item instead: then all parts are equally long.

    Errors: NotASequence for what cannot be cut; ConfigError for a dict of unequal lengths.
    """
    if size == 1:
        return inputs
    if isinstance(inputs, Mapping):
        lengths = {key: _length(value) for key, value in inputs.items()}
        if len(set(lengths.values())) > 1:
            raise ConfigError(
                f"split_between_processes got a dict of unequal lengths: {lengths}",
                "all values of a dict are cut at the same places",
                "give values of one length, or split them one by one",
            )
        return {key: split_between(value, rank, size, padding) for key, value in inputs.items()}
    length = _length(inputs)
    share, extra = divmod(length, size)
    start = rank * share + min(rank, extra)
    stop = start + share + (rank < extra)
    missing = share + (extra > 0) - (stop - start)
    if hasattr(inputs, "select") and hasattr(inputs, "column_names"):  # a dataset of columns
        repeats = [length - 1] * (missing if padding and length else 0)
        return inputs.select([*range(start, stop), *repeats])
    part = inputs[start:stop]
    if not padding or missing <= 0 or length == 0:
        return part
    return _lengthened(part, inputs[length - 1 : length], missing)


class NotASequence(RuntimeMisuse, TypeError):
    """Something was to be split between ranks that has no length and no slices."""


def _length(inputs: Any) -> int:
    if not (hasattr(inputs, "__len__") and hasattr(inputs, "__getitem__")):
        raise NotASequence(
            f"split_between_processes got {kind_of(inputs)}",
            "each rank takes a slice, which needs a length and an order",
            "give a list, tuple, range, tensor, array, or a dict of those: list(...) makes one",
        )
    return len(inputs)


def _lengthened(part: Any, last: Any, times: int) -> Any:
    join: Callable[[list[Any]], Any]
    if hasattr(part, "new_zeros"):  # a tensor
        import torch

        join = torch.cat
    elif type(part).__module__ == "numpy":
        import numpy

        join = numpy.concatenate
    elif isinstance(part, (list, tuple)):
        return part + last * times
    else:
        return [*part, *list(last) * times]
    return join([part, *[last] * times])

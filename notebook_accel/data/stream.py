"""Sharding of streams: datasets that can only be iterated.

Every rank reads the whole stream and keeps its part. The knowledge of what is a repeat rides with
the samples through the loader's workers, for only there the stream is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory

from notebook_accel.data.shard import WHOLE, Rule, Share


@dataclass(frozen=True)
class Dealt:
    """A sample, or a collated batch, with the share of the step that it belongs to."""

    content: Any
    share: Share

    def pin_memory(self) -> Dealt:
        """Pin what it holds; torch's pinning thread calls this."""
        return Dealt(pin_memory(self.content), self.share)  # type: ignore[no-untyped-call]


class ShardedStream(IterableDataset[Any]):
    """One rank's part of an iterable dataset; yields ``Dealt`` samples.

    With ``batch_size`` None the dataset makes its own batches, which are dealt whole.
    """

    def __init__(self, dataset: Any, batch_size: int | None, drop_last: bool, rule: Rule) -> None:
        self.dataset = dataset
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._rule = rule

    def __iter__(self) -> Iterator[Dealt]:
        ready_made = self._batch_size is None
        for batch, share in self._rule.deal(_batched(self.dataset, self._batch_size or 1)):
            if ready_made:
                share = whole(share)
            for sample in batch:
                yield Dealt(sample, share)

    def __len__(self) -> int:
        size = self._batch_size or 1
        samples = len(self.dataset)
        batches = samples // size if self._drop_last else -(-samples // size)
        return self._rule.num_batches(batches) * size


@dataclass(frozen=True)
class CollateDealt:
    """A collate function for ``Dealt`` samples, around the person's own."""

    collate: Callable[[Any], Any]
    ready_made: bool

    def __call__(self, dealt: Any) -> Dealt:
        """Collate what the samples hold; the share is that of the first."""
        if self.ready_made:
            return Dealt(self.collate(dealt.content), dealt.share)
        return Dealt(self.collate([one.content for one in dealt]), dealt[0].share)


def whole(share: Share) -> Share:
    """The share in ready-made batches, whose sizes nobody knows yet."""
    return Share(
        tuple(WHOLE if rows else 0 for rows in share.rows),
        tuple(WHOLE if real else 0 for real in share.real),
    )


def _batched(dataset: Iterable[Any], size: int) -> Iterator[list[Any]]:
    samples = iter(dataset)
    while batch := list(islice(samples, size)):
        yield batch

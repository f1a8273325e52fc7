"""Batch samplers that deal a loader's indices to ranks, and can begin in the middle of a pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch import Tensor
from torch.utils.data import BatchSampler, DistributedSampler

from notebook_accel.data.order import AgreedOrder
from notebook_accel.data.randomness import kept
from notebook_accel.data.shard import Rule, Share, distributed_sampler_shares
from notebook_accel.data.stream import whole


@dataclass(frozen=True)
class Start:
    """Where a pass begins: after ``skip`` batches of each reader.

    A pass that is begun anew, because a run was resumed, knows its ``origin`` (how its order was
    drawn) and ``seeds`` (where the generator stood that seeds workers): then nothing is drawn.
    ``state`` is that of a stateful reader, which then skips by itself.
    """

    skip: int = 0
    origin: dict[str, Any] | None = None
    seeds: Tensor | None = None
    state: Any = None


class Dealer:
    """Gives all batches of indices to the one reader there is.

    The next pass begins at ``start`` and, where ranks read unlike batches, puts the share of every
    step into ``record``.
    """

    records = False

    def __init__(self, batches: Any, order: AgreedOrder | None = None) -> None:
        self.batches = batches
        self.order = order
        self.start = Start()
        self.record: deque[Share] = deque()

    def __iter__(self) -> Iterator[Any]:
        start, record = self.start, self.record  # now: other passes may begin before this goes on
        if self.order is not None and start.origin is not None:
            self.order.replay(start.origin)
        return self._from(start, self._deal(record), record)

    def __len__(self) -> int:
        return len(self.batches)

    def _from(self, start: Start, dealt: Iterator[Any], record: deque[Share]) -> Iterator[Any]:
        with nullcontext() if start.origin is None else kept():
            _drop(dealt, start.skip)
        record.clear()
        return (yield from dealt)

    def _deal(self, record: deque[Share]) -> Iterator[Any]:
        return iter(self.batches)


class DealtBatches(Dealer):
    """Keeps this rank's batches and records every step's share."""

    records = True

    def __init__(self, batches: Any, order: AgreedOrder | None, rule: Rule) -> None:
        super().__init__(batches, order)
        self.rule = rule

    def __len__(self) -> int:
        return self.rule.num_batches(len(self.batches))

    def _deal(self, record: deque[Share]) -> Iterator[Any]:
        for batch, share in self.rule.deal(self.batches):
            record.append(share)
            yield batch


class DealtSingly(DealtBatches):
    """A sampler for loaders without batching: each item is a ready-made batch, dealt whole."""

    def _deal(self, record: deque[Share]) -> Iterator[Any]:
        for batch, share in self.rule.deal([index] for index in self.batches):
            record.append(whole(share))
            yield batch[0]


class DealtToAll(DealtBatches):
    """Keeps the batches of all ranks, one after the other, for the rank that reads for all.

    ``singly``: each item is a ready-made batch, as in DealtSingly.
    """

    def __init__(self, batches: Any, order: AgreedOrder | None, rule: Rule, singly: bool) -> None:
        super().__init__(batches, order, rule)
        self._singly = singly

    def _from(self, start: Start, dealt: Iterator[Any], record: deque[Share]) -> Iterator[Any]:
        for step in super()._from(start, dealt, record):  # a start counts steps
            yield from step

    def _deal(self, record: deque[Share]) -> Iterator[Any]:
        singly = self._singly
        batches = ([index] for index in self.batches) if singly else self.batches
        for group, share in self.rule.groups(batches):
            record.append(whole(share) if singly else share)
            yield [batch[0] if singly else batch for batch in group if batch]


class DistributedBatches(Dealer):
    """A batch sampler over torch's DistributedSampler, which only notes who got what."""

    records = True

    def __init__(self, batches: BatchSampler, sampler: DistributedSampler[Any]) -> None:
        super().__init__(batches)
        self.sampler = sampler

    def _deal(self, record: deque[Share]) -> Iterator[Any]:
        sampler = self.sampler
        kept_samples = sampler.total_size if sampler.drop_last else len(sampler.dataset)  # type: ignore[arg-type]
        shares = distributed_sampler_shares(
            kept_samples, sampler.num_replicas, self.batches.batch_size, self.batches.drop_last
        )
        for batch, share in zip(self.batches, shares, strict=True):
            record.append(share)
            yield batch


def _drop(items: Iterable[Any], count: int) -> None:
    next(islice(items, count, count), None)

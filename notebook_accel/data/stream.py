"""Sharding of streams: datasets that can only be iterated.

The unit is a step: the samples of one batch a rank, with the knowledge of what is a repeat. It is
made where the stream is read, in the loader's workers too, and rides with the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from notebook_accel.data.shard import WHOLE, Rule, Share


@dataclass(frozen=True)
class Dealt:
    """A batch, or what it is made of, with the share of its step.

    ``is_last`` is None where that is not known yet; ``state`` is the reader's, if it has one, just
    after it read this.
    """

    content: Any
    share: Share | None
    is_last: bool | None = None
    state: Any = None

    def pin_memory(self) -> Dealt:
        """Pin what it holds; torch's pinning thread calls this."""
        return replace(self, content=pin_memory(self.content))  # type: ignore[no-untyped-call]


class SharedStream(IterableDataset[Any]):
    """Steps of an iterable dataset: ``Dealt`` with a list of samples for each rank.

    With ``batch_size`` None the dataset makes its own batches, which are dealt whole.
    """

    def __init__(self, dataset: Any, batch_size: int | None, drop_last: bool, rule: Rule) -> None:
        self.dataset = dataset
        self.rule = rule
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._first: list[list[Any]] = []

    def __iter__(self) -> Iterator[Dealt]:
        first, self._first = self._first, []
        for group, share in self.rule.groups(self._batches(), first):
            yield Dealt(group, whole(share) if self._batch_size is None else share)

    def __len__(self) -> int:
        size = self._batch_size or 1
        samples = len(self.dataset)
        batches = samples // size if self._drop_last else -(-samples // size)
        return self.rule.num_batches(batches)

    def _batches(self) -> Iterator[list[Any]]:
        samples, size = iter(self.dataset), self._batch_size or 1
        while batch := list(islice(samples, size)):
            yield batch


class ShardedStream(SharedStream):
    """One rank's part of those steps: ``Dealt`` with its own list of samples."""

    def __iter__(self) -> Iterator[Dealt]:
        rank = self.rule.rank
        for step in super().__iter__():
            if rank < len(step.content) and step.content[rank]:
                yield replace(step, content=step.content[rank])


class SharedStreamWithState(SharedStream):
    """Steps of a dataset that has a state, which stands between two steps."""

    def state_dict(self) -> dict[str, Any]:
        """The dataset's state."""
        return {"dataset": self.dataset.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``; only the first step is read again, to complete the last with it."""
        self._first = next(self.rule.groups(self._batches()), ([], None))[0]
        self.dataset.load_state_dict(state["dataset"])


class ShardedStreamWithState(ShardedStream, SharedStreamWithState):
    """One rank's part of the steps of a dataset that has a state."""


def stream_of_steps(dataset: Any, for_all: bool) -> type[SharedStream]:
    """The kind of stream that deals ``dataset``, for all ranks or for this one."""
    if hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict"):
        return SharedStreamWithState if for_all else ShardedStreamWithState
    return SharedStream if for_all else ShardedStream


@dataclass(frozen=True)
class CollateDealt:
    """A collate function for a ``Dealt`` list of samples, around the person's own.

    ``ready_made``: the list holds one batch that the dataset made. ``for_all``: there is a list for
    each rank; None stands in the result for a rank that gets nothing.
    """

    collate: Callable[[Any], Any]
    ready_made: bool = False
    for_all: bool = False

    def __call__(self, dealt: Dealt) -> Dealt:
        """Collate what the step holds."""
        if self.for_all:
            return replace(
                dealt, content=[self._batch(one) if one else None for one in dealt.content]
            )
        return replace(dealt, content=self._batch(dealt.content))

    def _batch(self, samples: list[Any]) -> Any:
        return self.collate(samples[0] if self.ready_made else samples)


class SkippedStream(IterableDataset[Any]):
    """A stream without its first ``num_batches`` batches; workers of a loader skip theirs each."""

    def __init__(self, dataset: Any, num_batches: int, batch_size: int | None) -> None:
        self.dataset = dataset
        self._num_batches = num_batches
        self._batch_size = batch_size or 1

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        num_batches = self._num_batches
        if worker is not None:
            share, extra = divmod(num_batches, worker.num_workers)
            num_batches = share + (worker.id < extra)
        return islice(iter(self.dataset), num_batches * self._batch_size, None)

    def __len__(self) -> int:
        return max(0, len(self.dataset) - self._num_batches * self._batch_size)

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # not made yet (a copy in progress)
            raise AttributeError(name)
        return getattr(self.dataset, name)


def whole(share: Share) -> Share:
    """The share in ready-made batches, whose sizes nobody knows yet."""
    return Share(
        tuple(WHOLE if rows else 0 for rows in share.rows),
        tuple(WHOLE if real else 0 for real in share.real),
    )

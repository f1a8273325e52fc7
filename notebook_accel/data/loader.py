"""The prepared loader: a DataLoader that a person still recognizes, which reads its rank's share.

It knows where it is (``Pass``), because the clock, the metrics and the progress line ask.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from notebook_accel.data.shard import Share
from notebook_accel.data.stream import Dealt
from notebook_accel.errors import RuntimeMisuse
from notebook_accel.ranks.collectives import map_tree

_END = object()


class Pass:
    """One walk over a prepared loader: how far it is, and whether this batch is the last.

    ``taken`` batches of ``num_batches`` (None when unknown) were given out, ``batch`` is the newest
    and ``share`` says who got what at this step (None: one reader, no repeats).
    """

    __slots__ = ("batch", "epoch", "is_last", "loader", "num_batches", "share", "taken")

    def __init__(self, loader: PreparedLoader, num_batches: int | None, epoch: int) -> None:
        self.loader = loader
        self.num_batches = num_batches
        self.epoch = epoch
        self.taken = 0
        self.is_last = False
        self.batch: Any = None
        self.share: Share | None = None

    @property
    def left(self) -> int | None:
        """How many batches are left, this one included; None when unknown."""
        return None if self.num_batches is None else self.num_batches - self.taken + 1


class Passes:
    """The walks in progress, the most recently advanced one last.

    A loop that ends, or is broken out of, leaves this list: nothing stays behind.
    """

    def __init__(self) -> None:
        self.active: list[Pass] = []

    @property
    def current(self) -> Pass | None:
        """The walk whose batch was given out last."""
        return self.active[-1] if self.active else None

    def advance(self, one: Pass) -> None:
        """Note that ``one`` gave out a batch."""
        if not self.active or self.active[-1] is not one:
            self.end(one)
            self.active.append(one)

    def end(self, one: Pass) -> None:
        """Note that ``one`` is over."""
        if one in self.active:
            self.active.remove(one)


class PreparedLoader(DataLoader[Any]):
    """A face before the person's DataLoader: same attributes, this rank's batches, on the device.

    ``source`` is the loader as it was given; ``reader`` is a copy of it that reads this rank's
    share. It is made by ``data.prepare.prepare_loader``.

    Ranks: all ranks iterate it together.
    """

    def __init__(
        self,
        source: DataLoader[Any],
        reader: DataLoader[Any],
        device: torch.device | None,
        passes: Passes,
    ) -> None:
        # Not super().__init__(): the reader does a DataLoader's work, this face owns no workers.
        self.source = source
        self.reader = reader
        self.device = device
        self.passes = passes
        self.epoch = 0
        self.samples = 0
        self._pid = os.getpid()

    def __getattr__(self, name: str) -> Any:
        if name in ("source", "reader"):  # not made yet (a copy in progress)
            raise AttributeError(name)
        return getattr(self.source, name)

    def __len__(self) -> int:
        return len(self.reader)

    def __reduce__(self) -> Any:
        raise RuntimeMisuse(
            "A prepared DataLoader cannot travel between processes.",
            "it belongs to the ranks that prepared it.",
            "build and prepare it inside the function that you launch.",
        )

    def __iter__(self) -> Any:
        if os.getpid() != self._pid:
            raise other_process("DataLoader")
        one = Pass(self, self._known_length(), self.epoch)
        self.epoch += 1  # a pass that is broken off was a pass
        shares: deque[Share] | None = None
        dealers: tuple[Any, ...] = (self.reader.batch_sampler, self.reader.sampler)
        for dealer in dealers:
            if hasattr(dealer, "record"):
                shares = dealer.record = deque()
        # The reader's iterator is made now, not at the first batch: it draws a random number.
        return self._walk(iter(self.reader), one, shares)

    def set_epoch(self, epoch: int) -> None:
        """Hand the epoch to whatever orders the samples: a sampler, batch sampler or dataset."""
        self.epoch = epoch
        seen = []
        batches: Any = self.reader.batch_sampler
        sampler: Any = self.reader.sampler
        dealt = [getattr(one, "batches", None) for one in (batches, sampler)]
        for one in (batches, sampler, *dealt):
            seen += [one, getattr(one, "sampler", None)]
        for one in [*seen, self.source.dataset]:
            if hasattr(one, "set_epoch"):
                one.set_epoch(epoch)

    def _known_length(self) -> int | None:
        if isinstance(self.source.dataset, IterableDataset):
            return None  # a stream's length is a promise that it may not keep
        try:
            return len(self.reader)
        except TypeError:
            return None

    def _walk(self, batches: Iterator[Any], one: Pass, shares: deque[Share] | None) -> Any:
        passes = self.passes
        device = self.device
        try:
            if one.num_batches is None:
                batches = _with_end(batches, one)
            for batch in batches:
                if type(batch) is Dealt:
                    one.share, batch = batch.share, batch.content
                elif shares is not None:
                    one.share = shares.popleft()
                if device is not None:
                    batch = to_device(batch, device, non_blocking=self.source.pin_memory)
                one.batch = batch
                one.taken += 1
                if one.taken == one.num_batches:
                    one.is_last = True
                self.samples += num_rows(batch)
                passes.advance(one)
                yield batch
        finally:
            one.batch = None
            passes.end(one)


def _with_end(batches: Iterator[Any], one: Pass) -> Iterator[Any]:
    """Read one batch ahead, so that the last one is known when it is given out."""
    batch = next(batches, _END)
    while batch is not _END:
        following = next(batches, _END)
        one.is_last = following is _END
        yield batch
        batch = following


def to_device(batch: Any, device: torch.device, non_blocking: bool = False) -> Any:
    """Move every tensor (and whatever else has ``to``) of a batch to ``device``."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.to(device, non_blocking=non_blocking)
        return leaf.to(device) if hasattr(leaf, "to") else leaf

    # Containers that can move themselves know what must stay (a PackedSequence's batch sizes).
    return map_tree(move, batch, is_leaf=lambda one: hasattr(one, "to"))


def num_rows(batch: Any) -> int:
    """How many samples a batch holds, by the first tensor or list in it; 0 when nobody can say."""
    while True:
        if isinstance(batch, Tensor):
            return batch.shape[0] if batch.dim() else 1
        if isinstance(batch, dict) and batch:
            batch = next(iter(batch.values()))
        elif isinstance(batch, (list, tuple)) and batch:
            if not isinstance(batch[0], (Tensor, list, tuple, dict)):
                return len(batch)
            batch = batch[0]
        else:
            return 0


def other_process(what: str) -> RuntimeMisuse:
    """The error for a prepared object that a fork carried into another process."""
    return RuntimeMisuse(
        f"This prepared {what} was made in another process (now in {os.getpid()}).",
        "it belongs to the ranks and the device of the process that prepared it.",
        "build the Accelerator and call prepare inside the function that you launch.",
    )

"""The prepared loader: a DataLoader that a person still recognizes, which reads its rank's share.

It knows where it is (``Pass``), because the clock, the metrics and the progress line ask.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from notebook_accel.data.dealers import Dealer, Start
from notebook_accel.data.order import AgreedOrder
from notebook_accel.data.randomness import generator_at, kept, restore, snapshot
from notebook_accel.data.shard import Share
from notebook_accel.data.stream import Dealt
from notebook_accel.data.waiting import Waiting
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


class Bookmark:
    """Where a loader stands; it and the views of it that skip batches share one.

    ``epoch`` is the number of the next pass, ``told`` whether the person sets epochs. ``resumed``
    is where a resumed run has the next pass begin. ``seeds`` and ``stream_origin`` are where the
    random numbers stood when the newest pass began.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.told = False
        self.samples = 0
        self.resumed: Start | None = None
        self.seeds: Tensor | None = None
        self.stream_origin: dict[str, Any] = {}
        self.waiting = Waiting()


class PreparedLoader(DataLoader[Any]):
    """A face before the person's DataLoader: same attributes, this rank's batches, on the device.

    ``source`` is the loader as it was given; ``reader`` is a copy of it that reads this rank's
    share, dealt by ``dealer`` (None for a stream). It is made by ``data.prepare.prepare_loader``.

    Ranks: all ranks iterate it together.
    """

    def __init__(
        self,
        source: DataLoader[Any],
        reader: DataLoader[Any],
        dealer: Dealer | None,
        readers: int,
        device: torch.device | None,
        passes: Passes,
    ) -> None:
        # Not super().__init__(): the reader does a DataLoader's work, this face owns no workers.
        self.source = source
        self.reader = reader
        self.device = device
        self.passes = passes
        self._dealer = dealer
        self._readers = readers
        self._mark = Bookmark()
        self._skip = 0
        self._pid = os.getpid()

    def __getattr__(self, name: str) -> Any:
        if name in ("source", "reader"):  # not made yet (a copy in progress)
            raise AttributeError(name)
        return getattr(self.source, name)

    def __len__(self) -> int:
        return max(0, len(self.reader) - self._skip)

    def __reduce__(self) -> Any:
        raise RuntimeMisuse(
            "A prepared DataLoader cannot travel between processes.",
            "it belongs to the ranks that prepared it.",
            "build and prepare it inside the function that you launch.",
        )

    def __iter__(self) -> Any:
        if os.getpid() != self._pid:
            raise other_process("DataLoader")
        mark = self._mark
        start, mark.resumed = mark.resumed or Start(), None
        if self._skip:  # counts from the start of the pass, also in one that a resumed run goes on
            start = replace(start, skip=self._skip)
        if mark.told:
            self._tell(mark.epoch)
        one = Pass(self, self._known_length(), mark.epoch)
        one.taken = start.skip
        mark.epoch += 1  # a pass that is broken off was a pass
        # The reader's iterator is made now, not at the first batch: it draws a random number.
        batches = self._begin(start)
        return self._walk(batches if mark.waiting.done else mark.waiting.watch(batches), one)

    @property
    def epoch(self) -> int:
        """The number of the next pass."""
        return self._mark.epoch

    @property
    def samples(self) -> int:
        """How many samples this rank has been given in all passes."""
        return self._mark.samples

    def set_epoch(self, epoch: int) -> None:
        """Hand the epoch to whatever orders the samples: a sampler, batch sampler or dataset.

        Passes count on from there. In a resumed pass of this very epoch it changes nothing.
        """
        mark = self._mark
        if epoch != mark.epoch:
            mark.resumed = None
        mark.epoch, mark.told = epoch, True
        self._tell(epoch)

    def skipping(self, num_batches: int) -> PreparedLoader:
        """A view of this loader whose passes begin after ``num_batches`` batches of this rank.

        A pass over it is a pass over the loader: the next one, of either, is of the next epoch.
        """
        view = object.__new__(type(self))
        vars(view).update(vars(self))
        view._skip = num_batches
        return view

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, in plain values: epoch, position, and how its order began.

        Ranks: each for itself; between any two lines of the loop.
        """
        mark, order = self._mark, self._order
        running = [one for one in self.passes.active if one.loader._mark is mark and one.taken]
        state: dict[str, Any] = {
            "epoch": mark.epoch,
            "told": mark.told,
            "samples": mark.samples,
            "base": None if order is None else order.base,
            "taken": 0,
        }
        if running:
            one = running[-1]
            origin = mark.stream_origin if order is None else order.origin
            state.update(epoch=one.epoch, taken=one.taken, readers=self._readers)
            state.update(origin=origin, seeds=mark.seeds)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass be the rest of the one that ``state`` was taken in.

        Nothing is drawn from the global generators for it: they are where that pass left them. On
        another number of readers it begins at the same sample, or just before it.

        Ranks: each for itself.
        """
        mark = self._mark
        mark.epoch, mark.told, mark.samples = state["epoch"], state["told"], state["samples"]
        if self._order is not None:
            self._order.base = state["base"]
        mark.resumed = None
        if state["taken"]:
            taken = state["taken"] * state["readers"] // self._readers
            mark.resumed = Start(taken, state["origin"], state["seeds"])
        if mark.told:
            self._tell(mark.epoch)

    @property
    def _order(self) -> AgreedOrder | None:
        return None if self._dealer is None else self._dealer.order

    def _tell(self, epoch: int) -> None:
        dealer = self._dealer
        told: list[Any] = []
        for one in (None if dealer is None else dealer.batches, self.reader.sampler):
            told += [one, getattr(one, "sampler", None)]
        told.append(self.source.dataset)
        for one in told:
            if hasattr(one, "set_epoch"):
                one.set_epoch(epoch)

    def _begin(self, start: Start) -> Iterator[Any]:
        """Make the reader's iterator, with the random number that it draws."""
        mark, dealer = self._mark, self._dealer
        generator = self.source.generator
        if start.seeds is not None and (dealer is not None or generator is not None):
            generator = generator_at(start.seeds)
        vars(self.reader)["generator"] = generator
        mark.seeds = (generator or torch.default_generator).get_state()
        if dealer is not None:
            dealer.start, dealer.record = start, deque()
            return iter(self.reader)
        mark.stream_origin = start.origin or snapshot()
        return _begun_stream(self.reader, start)

    def _known_length(self) -> int | None:
        if isinstance(self.source.dataset, IterableDataset):
            return None  # a stream's length is a promise that it may not keep
        try:
            return len(self.reader)
        except TypeError:
            return None

    def _walk(self, batches: Iterator[Any], one: Pass) -> Any:
        passes, mark = self.passes, self._mark
        device = self.device
        dealer = self._dealer
        shares = dealer.record if dealer is not None and dealer.records else None
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
                mark.samples += num_rows(batch)
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


def _begun_stream(reader: DataLoader[Any], start: Start) -> Iterator[Any]:
    """Read a stream on to where the pass begins; a resumed run's random numbers stay as they were.

    The first batch is read with them: it had been read ahead when the run was saved.
    """
    if not start.skip:
        return iter(reader)
    with nullcontext() if start.origin is None else kept():
        if start.origin is not None:
            restore(start.origin)
        batches = iter(reader)
        next(islice(batches, start.skip, start.skip), None)
        first = list(islice(batches, 1))
    return chain(first, batches)


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

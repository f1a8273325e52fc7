"""How one rank gets its batches: by its own reader, or from rank 0; and how a pass begins."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from notebook_accel.config.kinds import RNGType
from notebook_accel.data.apart import FetchedApart
from notebook_accel.data.dealers import Dealer, DealtBatches, Start
from notebook_accel.data.dispatch import Dispatch, grouped
from notebook_accel.data.order import AgreedOrder
from notebook_accel.data.randomness import draw, generator_at, kept, mixed, restore, snapshot
from notebook_accel.data.shard import Share
from notebook_accel.data.sharding import evened
from notebook_accel.data.stateful import is_stateful, with_states
from notebook_accel.data.stream import SharedStream
from notebook_accel.data.waiting import Waiting
from notebook_accel.events import tasks
from notebook_accel.ranks.collectives import broadcast
from notebook_accel.ranks.seeding import share_rng_states
from notebook_accel.ranks.world import World


@dataclass(frozen=True)
class Seat:
    """Where a rank sits that reads: as ``rank`` of ``size`` readers, its batches on ``device``.

    ``device`` None leaves batches where they are made. ``rng_types`` are the random numbers that
    ranks share at the start of each pass, beside the samplers'. ``cut`` gives this rank's part of a
    batch that several ranks share.
    """

    world: World
    rank: int
    size: int
    device: torch.device | None
    non_blocking: bool
    rng_types: tuple[RNGType, ...] = ()
    cut: Callable[[Any], Any] | None = None


class Bookmark:
    """Where a loader stands; it and the views of it that skip batches share one.

    ``epoch`` is the number of the next pass, ``told`` whether the person sets epochs. ``resumed``
    is where a resumed run has the next pass begin. ``seeds`` and ``stream_origin`` are where the
    random numbers stood when the newest pass began, ``stream_state`` is that of a stateful reader
    after the newest batch; ``generators`` are where the person's own generators stood when the
    newest pass began. ``waiting`` measures how long loops wait.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.told = False
        self.samples = 0
        self.resumed: Start | None = None
        self.seeds: Tensor | None = None
        self.stream_origin: dict[str, Any] = {}
        self.stream_state: Any = None
        self.generators: list[Tensor] = []
        self.waiting = Waiting()


class Reading:
    """Begins passes over ``reader``, a copy of the person's ``source`` that reads this seat's part.

    ``dealer`` deals its indices; a stream has none and deals for itself. With ``dispatch`` only
    rank 0 uses its reader; with ``own_shards`` each rank's stream has been sharded by itself.
    """

    def __init__(
        self,
        source: DataLoader[Any],
        reader: DataLoader[Any],
        dealer: Dealer | None,
        seat: Seat,
        dispatch: Dispatch | None,
        own_shards: bool = False,
        even_shards: bool = True,
    ) -> None:
        self.reader = reader
        self.dealer = dealer
        self.seat = seat
        self.dispatch = dispatch
        self._source = source
        self._own_shards = own_shards
        self._even_shards = even_shards

    @property
    def order(self) -> AgreedOrder | None:
        """The order that ranks agree on, where indices are dealt."""
        return None if self.dealer is None else self.dealer.order

    @property
    def shares(self) -> deque[Share] | None:
        """Who gets what at each step of the pass just begun, where batches do not say so."""
        dealer = self.dealer
        if dealer is None or not dealer.records or self.dispatch is not None:
            return None
        return dealer.record

    @property
    def even(self) -> bool:
        """Whether the tail is completed so that all ranks take equally many steps."""
        holder = self._rule_holder()
        return self._even_shards if holder is None else holder.rule.even

    @even.setter
    def even(self, value: bool) -> None:
        holder = self._rule_holder()
        self._even_shards = value
        if holder is not None:
            holder.rule = replace(holder.rule, even=value)

    @property
    def tells_last(self) -> bool:
        """Whether the last batch of a stream comes marked as such."""
        return self.dispatch is not None or (self._own_shards and self._even_shards)

    @property
    def splits(self) -> bool:
        """Whether a batch of the person's is cut into one part a rank."""
        holder = self._rule_holder()
        return holder is not None and holder.rule.split

    @property
    def num_batches(self) -> int | None:
        """How many batches this rank gets; None where nobody can promise it."""
        if isinstance(self._source.dataset, IterableDataset):
            return None  # a stream's length is a promise that it may not keep
        try:
            return len(self.reader)
        except TypeError:
            return None

    def tell(self, epoch: int) -> None:
        """Hand the epoch to whatever orders the samples."""
        told: list[Any] = []
        for one in (None if self.dealer is None else self.dealer.batches, self._source.sampler):
            told += [one, getattr(one, "sampler", None)]
        told.append(self._source.dataset)
        if self._own_shards:
            told.append(self.reader.dataset)
        for one in told:
            if hasattr(one, "set_epoch"):
                one.set_epoch(epoch)

    def begin(self, start: Start, mark: Bookmark) -> Iterator[Any]:
        """Begin a pass at ``start``; the reader's iterator is made now, with what it draws.

        Ranks: all ranks call it.
        """
        seat, dealer = self.seat, self.dealer
        if seat.rng_types:
            share_rng_states(seat.rng_types, seat.world)
        generator = self._source.generator
        if start.seeds is not None and (dealer is not None or generator is not None):
            generator = generator_at(start.seeds)
        mark.seeds = start.seeds
        if mark.seeds is None:
            mark.seeds = (generator or torch.default_generator).get_state()
        # A resumed pass drew this number before it was saved: the global generator must not move.
        drawn_from = generator if start.seeds is None else generator_at(start.seeds)
        if self.dispatch is not None and not self.dispatch.reads:
            draw(drawn_from)  # as rank 0's reader does: ranks' random numbers stay together
            return self.dispatch.deal(None)
        if self.dispatch is None and seat.size > 1 and self._makes_workers():
            generator = self._own_seeds(start, mark, draw(drawn_from))
        vars(self.reader)["generator"] = generator
        if dealer is None:
            mark.stream_origin = start.origin or snapshot()
            batches, skipped = _begun_stream(self.reader, start, self._own_shards)
            if self._own_shards:
                return evened(batches, seat.world, self._even_shards, skipped)
        else:
            dealer.start, dealer.record = start, deque()
            batches = iter(self.reader)
        if self.dispatch is None:
            return batches
        groups = batches if dealer is None else grouped(batches, dealer.record)
        return self.dispatch.deal(groups)

    def _own_seeds(self, start: Start, mark: Bookmark, seed: int) -> torch.Generator:
        """What this rank's reader draws its workers' seed from; ``seed`` is the bare loader's.

        Workers that index a dataset should differ from rank to rank. Those that walk through a
        stream must not: each rank keeps its part of what all of them see.
        """
        if self.dealer is None:
            if self.reader.num_workers and not self._own_shards:
                seed = int(broadcast(torch.tensor(seed), self.seat.world).item())
            if self._own_shards:
                seed = mixed(seed, self.seat.rank)
            return torch.Generator().manual_seed(seed)
        if isinstance(self.reader.dataset, FetchedApart):
            self.reader.dataset.begin(seed, start.skip)
        if self.seat.rank == 0:
            assert mark.seeds is not None
            return generator_at(mark.seeds)
        return torch.Generator().manual_seed(mixed(seed, self.seat.rank))

    def _makes_workers(self) -> bool:
        """Whether the reader draws a seed now: persistent workers keep their first one."""
        return not self.reader.persistent_workers or self.reader._iterator is None

    def _rule_holder(self) -> DealtBatches | SharedStream | None:
        holder: Any = self.reader.dataset if self.dealer is None else self.dealer
        return holder if isinstance(holder, (DealtBatches, SharedStream)) else None


def _begun_stream(reader: Any, start: Start, wants_first: bool) -> tuple[Iterator[Any], list[Any]]:
    """Read a stream on to where the pass begins; a resumed run's random numbers stay as they were.

    The first batch is read with them: it had been read ahead when the run was saved. Gives what is
    left, and the first of the batches that were skipped, if any was; where that is wanted, also if
    a state makes it needless to read it.
    """
    keeps_state = is_stateful(reader)
    ahead: list[Any] = []
    skipped: list[Any] = []
    with nullcontext() if start.origin is None else kept():
        if start.origin is not None:
            restore(start.origin)
        if keeps_state and start.state is not None:
            skipped = list(islice(reader, int(wants_first)))
            reader.load_state_dict(start.state)
        batches = iter(reader)
        if keeps_state:
            batches = with_states(batches, reader)
        if start.skip:
            if start.state is None:
                skipped = list(islice(batches, 1))
                with tasks.counting("skipping batches", start.skip, "batches") as read:
                    for _ in islice(batches, start.skip - 1):
                        read(1)
            ahead = list(islice(batches, 1))
    return (chain(ahead, batches) if ahead else batches), skipped

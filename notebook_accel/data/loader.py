"""The prepared loader: a DataLoader that a person still recognizes, which reads its rank's share.

It knows where it is (``Pass``), because the clock, the metrics and the progress line ask.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import DataLoader

from notebook_accel.config.kinds import RNGType
from notebook_accel.data.batch import num_rows, to_device
from notebook_accel.data.dealers import Start
from notebook_accel.data.randomness import in_plain_values
from notebook_accel.data.reading import Bookmark, Reading
from notebook_accel.data.shard import Share
from notebook_accel.data.stream import Dealt
from notebook_accel.errors import RuntimeMisuse

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


@dataclass(frozen=True)
class Ended:
    """A pass that is over: how many batches and rows this rank had, some rows ``repeated``."""

    num_batches: int
    rows: int
    repeated: bool


class Passes:
    """The walks in progress, the most recently advanced one last.

    A loop that ends, or is broken out of, leaves this list: nothing stays behind but ``ended``,
    what the newest pass that came to its end had read. ``waited_s`` is how long the loops of all
    passes have waited for their batches.
    """

    def __init__(self) -> None:
        self.active: list[Pass] = []
        self.ended: Ended | None = None
        self.waited_s = 0.0

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

    ``source`` is the loader as it was given; ``reading`` begins passes over this rank's share. It
    is made by ``data.prepare.prepare_loader``.

    Ranks: all ranks iterate it together.
    """

    _is_accelerate_prepared = True  # other libraries ask by this name

    def __init__(self, source: DataLoader[Any], reading: Reading, passes: Passes) -> None:
        # Not super().__init__(): a reader does a DataLoader's work, this face owns no workers.
        self.source = source
        self.reading = reading
        self.passes = passes
        self._mark = Bookmark()
        self._mark.told = reading.order is not None and reading.order.epoch is not None
        self._skip = 0
        self._pid = os.getpid()

    def __getattr__(self, name: str) -> Any:
        if name == "source":  # not made yet (a copy in progress)
            raise AttributeError(name)
        return getattr(self.source, name)

    def __len__(self) -> int:
        return max(0, len(self.reading.reader) - self._skip)

    def __reduce__(self) -> Any:
        raise cannot_travel("DataLoader")

    def __iter__(self) -> Any:
        if os.getpid() != self._pid:
            raise other_process("DataLoader")
        mark = self._mark
        start, mark.resumed = mark.resumed or Start(), None
        if self._skip:  # counts from the start of the pass, also in one that a resumed run goes on
            state = start.state if self._skip == start.skip else None
            start = replace(start, skip=self._skip, state=state)
        elif start.skip and self.reading.seat.world.rank == 0:  # nobody would think of it
            print(
                f"note: this pass begins behind the {start.skip} batches that each rank had read "
                "when the checkpoint was saved: the loop must not skip them again"
            )
        if mark.told:
            self.reading.tell(mark.epoch)
        one = Pass(self, self.reading.num_batches, mark.epoch)
        one.taken = start.skip
        mark.epoch += 1  # a pass that is broken off was a pass
        mark.generators = [one.get_state() for one in self._generators()]
        # The reader's iterator is made now, not at the first batch: it draws a random number.
        batches = self.reading.begin(start, mark)
        return self._walk(batches, self.reading.shares, one)

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
        self.reading.tell(epoch)

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
        mark, order = self._mark, self.reading.order
        one = self._running()
        state: dict[str, Any] = {
            "epoch": mark.epoch,
            "told": mark.told,
            "samples": mark.samples,
            "base": None if order is None else order.base,
            "taken": 0,
            "generators": [one.get_state() for one in self._generators()],
        }
        if one is not None:
            if self.source.generator is None:  # samplers draw the pass again from where it began
                state["generators"] = mark.generators
            origin = mark.stream_origin if order is None else order.origin
            state.update(epoch=one.epoch, taken=one.taken, readers=self.reading.seat.size)
            state.update(step=self.total_batch_size)
            state.update(origin=in_plain_values(origin), seeds=mark.seeds, stream=mark.stream_state)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass be the rest of the one that ``state`` was taken in.

        Nothing is drawn from the global generators for it: they are where that pass left them. On
        another number of readers, or with batches of another size, it begins at the same sample,
        or just before it.

        Ranks: each for itself.
        """
        mark = self._mark
        mark.epoch, mark.told, mark.samples = state["epoch"], state["told"], state["samples"]
        if self.reading.order is not None:
            self.reading.order.base = state["base"]
        for generator, stood in zip(self._generators(), state["generators"], strict=False):
            generator.set_state(stood)
        mark.resumed = None
        if state["taken"]:
            readers, step = self.reading.seat.size, self.total_batch_size
            was = state.get("step", state["readers"] * step // readers)  # older ones have none
            taken = state["taken"] * was // step
            stream = state["stream"] if (state["readers"], was) == (readers, step) else None
            mark.resumed = Start(taken, state["origin"], state["seeds"], stream)
        if mark.told:
            self.reading.tell(mark.epoch)

    def _generators(self) -> list[torch.Generator]:
        """The person's own generators, from which passes are drawn instead of the global one."""
        loader = self.source
        holders = (loader, loader.sampler, getattr(loader.batch_sampler, "sampler", None))
        found = [getattr(one, "generator", None) for one in holders]
        return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())

    @property
    def base_dataloader(self) -> DataLoader[Any]:
        """The loader as it was given, by Accelerate's name."""
        return self.source

    @property
    def device(self) -> torch.device | None:
        """Where batches are put; None where they stay as they are made."""
        return self.reading.seat.device

    @property
    def even_batches(self) -> bool:
        """Whether the tail of a pass is completed, so that all ranks take equally many steps."""
        return self.reading.even

    @even_batches.setter
    def even_batches(self, value: bool) -> None:
        self.reading.even = value

    @property
    def total_batch_size(self) -> int:
        """How many samples all ranks together take at a full step."""
        size = self.source.batch_size or getattr(self.source.batch_sampler, "batch_size", None) or 1
        return int(size) if self.reading.splits else int(size) * self.reading.seat.size

    @property
    def total_dataset_length(self) -> int:
        """How many samples the dataset has."""
        return len(self.source.dataset)  # type: ignore[arg-type]

    @property
    def remainder(self) -> int:
        """How many samples the last step of all ranks together has, if it is short.

        0 when it is full, -1 for a stream without a length.
        """
        if getattr(self.source.batch_sampler, "drop_last", self.source.drop_last):
            return 0
        try:
            return self.total_dataset_length % self.total_batch_size
        except TypeError:
            return -1

    @property
    def rng_types(self) -> list[RNGType]:
        """Which random numbers ranks share at the start of a pass, beside the samplers'."""
        return list(self.reading.seat.rng_types)

    def get_sampler(self) -> Any:
        """Give what orders the samples: a sampler, or a batch sampler that does it by itself."""
        order = self.reading.order
        return self.source.sampler if order is None else order.sampler

    def set_sampler(self, sampler: Any) -> None:
        """Let ``sampler`` order the samples from the next pass on, in place of the one there was.

        Ranks: all ranks call it, with samplers of the same dataset.
        Errors: RuntimeMisuse for a loader whose order is not ours to change.
        """
        if self.reading.order is None:
            raise RuntimeMisuse(
                "set_sampler() of a loader that reads a stream, or deals to ranks by itself",
                "nothing orders its samples that could be exchanged",
                "make a DataLoader with that sampler, and prepare it",
            )
        self.reading.order.sampler = sampler

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the newest batch is the last of its pass."""
        running = self._running()
        return running is not None and running.is_last

    def _running(self) -> Pass | None:
        """The newest of this loader's passes that is in progress."""
        mine = [one for one in self.passes.active if one.loader._mark is self._mark]
        return mine[-1] if mine else None

    def _walk(self, batches: Iterator[Any], shares: deque[Share] | None, one: Pass) -> Any:
        passes, mark, seat = self.passes, self._mark, self.reading.seat
        device = seat.device
        samples_before = mark.samples
        now = time.perf_counter
        look = mark.waiting.begin()
        try:
            if one.num_batches is None and not self.reading.tells_last:
                batches = _with_end(batches, one)
            asked = now()
            for batch in batches:
                came = now()
                waited_s = came - asked
                passes.waited_s += waited_s
                look.waited_s += waited_s
                if came >= look.due:
                    look.at(came)
                if type(batch) is Dealt:
                    one.share, one.is_last = batch.share, batch.is_last or one.is_last
                    mark.stream_state, batch = batch.state, batch.content
                elif shares is not None:
                    one.share = shares.popleft()
                if seat.cut is not None:
                    batch = seat.cut(batch)
                if device is not None:
                    batch = to_device(batch, device, non_blocking=seat.non_blocking)
                one.batch = batch
                one.taken += 1
                if one.taken == one.num_batches:
                    one.is_last = True
                mark.samples += num_rows(batch)
                passes.advance(one)
                yield batch
                asked = now()
            if one.share is not None:
                repeated = one.share.real != one.share.rows
                passes.ended = Ended(one.taken, mark.samples - samples_before, repeated)
        finally:
            one.batch = None
            passes.end(one)
            look.end(now())


def _with_end(batches: Iterator[Any], one: Pass) -> Iterator[Any]:
    """Read one batch ahead, so that the last one is known when it is given out."""
    batch = next(batches, _END)
    while batch is not _END:
        following = next(batches, _END)
        one.is_last = following is _END
        yield batch
        batch = following


def cannot_travel(what: str) -> RuntimeMisuse:
    """The error for a prepared object that somebody tries to pickle."""
    return RuntimeMisuse(
        f"a prepared {what} cannot travel between processes",
        "it belongs to the ranks that prepared it",
        f"build and prepare it inside the function that you launch; save {what}.state_dict()",
    )


def other_process(what: str) -> RuntimeMisuse:
    """The error for a prepared object that a fork carried into another process."""
    return RuntimeMisuse(
        f"this prepared {what} was made in another process (now in {os.getpid()})",
        "it belongs to the ranks and the device of the process that prepared it",
        "build the Accelerator and call prepare inside the function that you launch",
    )

"""In which order samples come: the bare loop's order, agreed between ranks.

A prepared loader draws from the global generator exactly what the bare loader would draw, when it
would draw it; among several ranks rank 0's draw counts.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import (
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from notebook_accel.config.words import kind_of
from notebook_accel.data.randomness import restore, snapshot
from notebook_accel.errors import RuntimeMisuse
from notebook_accel.ranks import watch
from notebook_accel.ranks.collectives import broadcast, rank_sizes
from notebook_accel.ranks.seeding import draw_shared_seed
from notebook_accel.ranks.world import World


class AgreedOrder(Sampler[Any]):
    """A sampler (or batch sampler) that gives all ranks one order, whatever randomness it uses.

    ``origin`` tells in plain values how the newest pass began; ``replay`` makes the next one begin
    so. With ``data_seed`` the order of a RandomSampler is a function of it and of the epoch, and
    nothing is drawn; after ``set_epoch`` it is a function of ``base``, the first draw, and of the
    epoch.

    Ranks: all ranks iterate it together.
    """

    def __init__(self, sampler: Any, world: World, data_seed: int | None = None) -> None:
        self.sampler = sampler  # the person's own: they may call its set_epoch
        inner = getattr(sampler, "sampler", None)
        self._inner = inner if isinstance(inner, AgreedOrder) else None
        self._base = data_seed
        self.epoch: int | None = None if data_seed is None else 0
        self.origin: dict[str, Any] = {}
        self._draws = data_seed is None
        self._world = world
        self._replayed: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        sampler = self.sampler
        origin, self._replayed = self._replayed, None
        if type(sampler) is SequentialSampler:
            self.origin = {}
            return iter(sampler)
        if type(sampler) is RandomSampler and sampler.generator is None:
            return self._seeded(origin)
        if isinstance(getattr(sampler, "generator", None), torch.Generator):
            return self._by_its_generator(origin)
        if origin is None and self._world.size == 1:
            self.origin = snapshot()
            return iter(sampler)  # now: it may draw now
        return self._by_anything(origin)

    def __len__(self) -> int:
        return len(self.sampler)

    @property
    def base(self) -> int | None:
        """The seed of epoch 0, where the order is a function of the epoch."""
        return self._base if self._inner is None else self._inner.base

    @base.setter
    def base(self, value: int | None) -> None:
        if self._inner is None:
            self._base = value
        else:
            self._inner.base = value

    def replay(self, origin: dict[str, Any]) -> None:
        """Let the next pass begin as that of ``origin`` did; it may move the global generators."""
        self._replayed = origin or None

    def set_epoch(self, epoch: int) -> None:
        """Make the order a function of the epoch: pass ``epoch`` again, see the order again."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
        self.epoch = epoch

    def _seeded(self, origin: dict[str, Any] | None) -> Iterator[Any]:
        seed = self._seed() if origin is None else origin["seed"]
        self.origin = {"seed": seed}
        seeded = copy.copy(self.sampler)  # of this pass only: passes may be nested
        seeded.generator = torch.Generator()
        seeded.generator.manual_seed(seed)
        yield from seeded

    def _seed(self) -> int:
        drawn = draw_shared_seed(self._world) if self._draws else 0
        if self.epoch is None:
            return drawn
        if self._base is None:
            self._base = drawn
        return (self._base + self.epoch) % 2**63

    def _by_its_generator(self, origin: dict[str, Any] | None) -> Iterator[Any]:
        generator = self.sampler.generator
        if origin is not None:
            generator.set_state(origin["generator"])
        elif self._world.size > 1:
            generator.set_state(broadcast(generator.get_state(), self._world))
        self.origin = {"generator": generator.get_state()}
        yield from self.sampler

    def _by_anything(self, origin: dict[str, Any] | None) -> Iterator[Any]:
        if origin is not None:
            restore(origin)
        self.origin = snapshot()
        if self._world.size == 1:
            yield from self.sampler
        elif _ends(self.sampler):
            yield from self._rank_0s(list(self.sampler))
        else:
            yield from self._compared(iter(self.sampler))

    def _compared(self, items: Iterator[Any]) -> Iterator[Any]:
        """Items of a sampler that may not end, once ranks have compared how theirs begin."""
        head = list(islice(items, self._world.size))
        codes = rank_sizes(zlib.crc32(repr(head).encode()), self._world)
        if len(set(codes)) > 1:
            raise RuntimeMisuse(
                f"{kind_of(self.sampler)} without len() gives ranks unlike orders",
                "each rank keeps its part of one order; a sampler that may not end cannot be asked "
                "on rank 0 for all",
                "seed what it draws from alike on all ranks (set_seed), or give it a __len__",
            )
        return chain(head, items)

    def _rank_0s(self, items: list[Any]) -> list[Any]:
        """Rank 0's items; the others have drawn theirs too, so that ranks' random numbers agree."""
        tells = self._world.rank == 0 or self._world.is_fake
        box = [_packed(items) if tells else None]
        watch.broadcast_object_list(box, 0)
        return _unpacked(box[0])


def _packed(items: list[Any]) -> Any:
    """Indices, or batches of indices, in few bytes."""
    if all(type(one) is int for one in items):
        return torch.tensor(items), None
    if all(type(one) is list and all(type(index) is int for index in one) for one in items):
        return torch.tensor([index for one in items for index in one]), list(map(len, items))
    return items


def _unpacked(packed: Any) -> list[Any]:
    if isinstance(packed, list):
        return packed
    flat, lengths = packed
    return flat.tolist() if lengths is None else [part.tolist() for part in flat.split(lengths)]


def _ends(sampler: Any) -> bool:
    """Whether the sampler can be read to its end: one that does not know its length may not end."""
    if isinstance(sampler, (SubsetRandomSampler, WeightedRandomSampler)):
        return True
    try:
        return len(sampler) >= 0
    except TypeError:
        return False

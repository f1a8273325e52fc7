"""In which order samples come: the bare loop's order, agreed between ranks.

A prepared loader draws from the global generator exactly what the bare loader would draw, when it
would draw it; among several ranks rank 0's draw counts.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import (
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from notebook_accel.ranks.collectives import broadcast
from notebook_accel.ranks.seeding import draw_shared_seed
from notebook_accel.ranks.world import World


class AgreedOrder(Sampler[Any]):
    """A sampler that gives all ranks one order, whatever randomness it uses.

    Ranks: all ranks iterate it together.
    """

    def __init__(self, sampler: Any, world: World) -> None:
        self.sampler = sampler  # the person's own: they may call its set_epoch
        self._world = world
        self._epoch: int | None = None
        self._base: int | None = None

    def __iter__(self) -> Iterator[Any]:
        sampler = self.sampler
        if isinstance(sampler, RandomSampler) and (sampler.generator is None):
            seeded = copy.copy(sampler)  # of this pass only: passes may be nested
            seeded.generator = torch.Generator()
            seeded.generator.manual_seed(self._seed())
            yield from seeded
        elif self._world.size == 1 or isinstance(sampler, SequentialSampler):
            yield from sampler
        elif isinstance(getattr(sampler, "generator", None), torch.Generator):
            state = sampler.generator.get_state()
            sampler.generator.set_state(broadcast(state, self._world))
            yield from sampler
        else:
            yield from self._rank_0s(list(sampler)) if _ends(sampler) else sampler

    def __len__(self) -> int:
        return len(self.sampler)

    def set_epoch(self, epoch: int) -> None:
        """Make the order a function of the epoch: pass ``epoch`` again, see the order again."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
        self._epoch = epoch

    def _seed(self) -> int:
        drawn = draw_shared_seed(self._world)
        if self._epoch is None:
            return drawn
        if self._base is None:
            self._base = drawn
        return (self._base + self._epoch) % 2**63

    def _rank_0s(self, indices: list[Any]) -> list[Any]:
        if not all(isinstance(index, int) for index in indices):
            return indices
        agreed: list[Any] = broadcast(torch.tensor(indices), self._world).tolist()
        return agreed


def _ends(sampler: Any) -> bool:
    """Whether the sampler can be read to its end: one that does not know its length may not end."""
    if isinstance(sampler, (SubsetRandomSampler, WeightedRandomSampler)):
        return True
    try:
        return len(sampler) >= 0
    except TypeError:
        return False

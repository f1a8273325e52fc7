"""Randomness inside a dataset that is each rank's own, while ranks share all other randomness.

Ranks that were seeded alike would augment their unlike samples with like random numbers. Workers
get seeds of their own; where the training process itself fetches, the numbers that fetching draws
are this rank's own, and the global generators stay as they were: ranks go on drawing alike
elsewhere. A single process keeps the numbers of the bare loop.
"""

from __future__ import annotations

from typing import Any

from notebook_accel.data.randomness import mixed, reseed, restore, same, snapshot


class FetchedApart:
    """A map-style dataset that gives collated batches, with random numbers of this rank's own.

    It stands for both the dataset and the collate function of the person, which draws too (masked
    tokens). After ``begin`` the numbers of each fetch are a function of the pass's ``seed``, the
    rank and the fetch's place in the pass, so that a resumed pass sees the same ones.
    """

    def __init__(self, dataset: Any, collate: Any, rank: int) -> None:
        self.dataset = dataset
        self._collate = collate
        self._rank = rank
        self.begin(0, 0)

    def begin(self, seed: int, taken: int) -> None:
        """Begin a pass after ``taken`` batches."""
        self._seed = seed
        self._taken = taken
        self._draws: bool | None = None  # not known yet

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self._fetch(index, self._one)

    def __getitems__(self, indices: list[Any]) -> Any:
        """Fetch and collate a batch."""
        return self._fetch(indices, self._many)

    def _fetch(self, wanted: Any, fetch: Any) -> Any:
        self._taken += 1
        if self._draws is False:
            return fetch(wanted)
        before = snapshot()
        reseed(mixed(self._seed, self._rank, self._taken))
        seeded = snapshot() if self._draws is None else None
        try:
            return fetch(wanted)
        finally:
            # A dataset that draws nothing for the first batch of a pass is spared the seeding.
            if seeded is not None:
                self._draws = not same(seeded, snapshot())
            restore(before)

    def _one(self, index: Any) -> Any:
        return self._collate(self.dataset[index])

    def _many(self, indices: list[Any]) -> Any:
        if getattr(self.dataset, "__getitems__", None):
            return self._collate(self.dataset.__getitems__(indices))
        return self._collate([self.dataset[index] for index in indices])


def as_fetched(batch: Any) -> Any:
    """The collate function for batches that were collated as they were fetched."""
    return batch

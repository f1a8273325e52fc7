"""Streams that shard themselves, as Hugging Face's can: each rank reads its own files only.

Nobody knows beforehand how much a shard holds, so ranks tell each other at every step how many
rows they have: one small all-gather a step buys reading everything once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from notebook_accel.data.batch import num_rows
from notebook_accel.data.shard import WHOLE, Share
from notebook_accel.data.stream import Dealt
from notebook_accel.errors import RuntimeMisuse
from notebook_accel.ranks.collectives import gather
from notebook_accel.ranks.world import World

_END = object()
_NONE_LEFT = -2


def can_shard(dataset: Any, size: int) -> bool:
    """Whether ``dataset`` has ``shard(num_shards, index)``, and at least a shard for each rank."""
    count = getattr(dataset, "num_shards", getattr(dataset, "n_shards", 0))
    return hasattr(dataset, "shard") and isinstance(count, int) and count >= size


def evened(batches: Iterator[Any], world: World, even: bool, skipped: list[Any]) -> Iterator[Dealt]:
    """Give this rank's batches with the share of each step.

    With ``even`` a rank whose shard is over repeats its first batch until all shards are; where a
    pass is resumed that is among those ``skipped``.

    Ranks: all ranks read together.
    Errors: RuntimeMisuse, on all ranks, if a rank has not even one batch.
    """
    if not even:
        whole = (WHOLE,) * world.size
        yield from (Dealt(batch, Share(whole, whole)) for batch in batches)
        return
    batch = next(batches, _END)
    first = skipped[0] if skipped else batch
    first_rows = _rows_of_ranks(first, world)
    rows = _rows_of_ranks(batch, world) if skipped else first_rows
    if _NONE_LEFT in first_rows and len(set(first_rows)) > 1:
        raise RuntimeMisuse(
            f"Rank {first_rows.index(_NONE_LEFT)} has an empty shard of the dataset.",
            "each rank reads shards of its own, and needs a batch at every step.",
            "start fewer ranks, or let rank 0 read for all: "
            "DataLoaderConfiguration(dispatch_batches=True).",
        )
    while set(rows) != {_NONE_LEFT}:
        following = next(batches, _END)
        upcoming = _rows_of_ranks(following, world)
        held = [
            old if one == _NONE_LEFT else one for one, old in zip(rows, first_rows, strict=True)
        ]
        real = [0 if one == _NONE_LEFT else one for one in rows]
        is_last = set(upcoming) == {_NONE_LEFT}
        yield Dealt(first if batch is _END else batch, Share(tuple(held), tuple(real)), is_last)
        batch, rows = following, upcoming


def _rows_of_ranks(batch: Any, world: World) -> list[int]:
    """How many rows each rank's batch has; WHOLE if it cannot be told."""
    rows = _NONE_LEFT if batch is _END else num_rows(batch) or WHOLE
    every: list[int] = gather(torch.tensor([rows]), world).tolist()
    return every

"""Streams that shard themselves, as Hugging Face's can: each rank reads its own files only.

Nobody knows beforehand how much a shard holds, so ranks tell each other at every step how many
rows they have: one small all-gather a step buys reading everything once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from notebook_accel.data.batch import num_rows
from notebook_accel.data.shard import WHOLE, Share
from notebook_accel.data.stream import Dealt
from notebook_accel.errors import RuntimeMisuse
from notebook_accel.ranks.collectives import gather
from notebook_accel.ranks.world import World

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
    steps = map(_as_step, batches)
    if not even:
        unknown = Share((WHOLE,) * world.size, (WHOLE,) * world.size)
        yield from (replace(step, share=unknown) for step in steps)
        return
    step = next(steps, None)
    first = _as_step(skipped[0]) if skipped else step
    first_rows = _rows_of_ranks(first, world)
    rows = _rows_of_ranks(step, world) if skipped else first_rows
    if _NONE_LEFT in first_rows and len(set(first_rows)) > 1:
        raise RuntimeMisuse(
            f"rank {first_rows.index(_NONE_LEFT)} has an empty shard of the dataset",
            "each rank reads shards of its own, and needs a batch at every step",
            "start fewer ranks, or let rank 0 read for all: "
            "DataLoaderConfiguration(dispatch_batches=True)",
        )
    state = None
    while set(rows) != {_NONE_LEFT}:
        following = next(steps, None)
        upcoming = _rows_of_ranks(following, world)
        pairs = zip(rows, first_rows, strict=True)
        held = [repeated if one == _NONE_LEFT else one for one, repeated in pairs]
        real = [0 if one == _NONE_LEFT else one for one in rows]
        share = Share(tuple(held), tuple(real))
        is_last = set(upcoming) == {_NONE_LEFT}
        state = state if step is None else step.state
        given = step or first
        assert given is not None
        yield Dealt(given.content, share, is_last, state)
        step, rows = following, upcoming


def _as_step(batch: Any) -> Dealt:
    return batch if type(batch) is Dealt else Dealt(batch, None)


def _rows_of_ranks(step: Dealt | None, world: World) -> list[int]:
    """How many rows each rank's batch has; WHOLE if it cannot be told."""
    rows = _NONE_LEFT if step is None else num_rows(step.content) or WHOLE
    every: list[int] = gather(torch.tensor([rows]), world).tolist()
    return every

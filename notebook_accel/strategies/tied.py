"""Weights that several stages of a pipeline use, as a language model's first and last stage do.

Each rank of these stages holds such a weight and trains it. Its gradient is the sum of what all of
them say of it, on each of them alike, so that all make one and the same step:

    first stage   words.weight   grad a ┐ add_up ┌ a + b   the norm counts it here
    last stage    head.weight    grad b ┘        └ a + b
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from notebook_accel.ranks.shards import local
from notebook_accel.ranks.world import when_left


def group_of(places: Sequence[int], pipeline: Any) -> Any:
    """Give the group of the ranks that have these ``places`` in a ``pipeline``, itself a group.

    Ranks: all ranks of these places call it.
    """
    if len(places) == dist.get_world_size(pipeline):
        return pipeline
    ranks = tuple(sorted(dist.get_global_rank(pipeline, place) for place in places))
    return _group(ranks, id(dist.group.WORLD))


@functools.cache
def _group(ranks: tuple[int, ...], world: int) -> Any:
    when_left(_group.cache_clear)
    return dist.new_group([*ranks], use_local_synchronization=True)


def add_up(parameter: Tensor, group: Any) -> None:
    """Let the gradient of ``parameter`` be the sum of every rank's; a rank may have none.

    Ranks: all ranks of ``group`` call it.
    """
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    dist.all_reduce(local(parameter.grad), group=group)


def keep_once(parameter: Tensor, group: Any) -> None:
    """Leave a sum that every rank of ``group`` has to its first, to be added up again with more."""
    if dist.get_rank(group) != 0:
        parameter.grad = None

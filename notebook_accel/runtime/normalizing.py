"""Losses that are sums over things of which batches hold unlike numbers: tokens, rows, pixels.

A mean of means weighs a token of a short batch more than one of a long batch. Here the sums of all
ranks and micro-batches of a window are divided by the number of things in all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from notebook_accel.ranks import collectives
from notebook_accel.ranks.world import World
from notebook_accel.runtime.clock import Clock
from notebook_accel.strategies.base import Engine


class Normalizing:
    """The part of an Accelerator that weighs losses by what they count."""

    _world: World
    _clock: Clock
    _engine: Engine

    def normalize(self, loss_sum: Tensor, num_items: Tensor | float) -> Tensor:
        """Make a sum over ``num_items`` tokens (or rows) the loss to give to ``backward``.

        However many items each rank and each micro-batch has, the optimizer step is that of one
        batch that holds them all: ``loss_sum`` over ``reduction="sum"``, ``num_items`` the number
        of labels that count. Written ``accelerator.backward(accelerator.normalize(s, n))``. With
        one micro-batch a step the result's mean over the ranks is the mean over all items.

        Ranks: all ranks call it, once a micro-batch, inside ``accumulate``.
        """
        count = torch.as_tensor(num_items, dtype=torch.float32, device=loss_sum.device)
        divisor = self._clock.weigh(count.detach(), self._total)
        return loss_sum * self._world.size / divisor  # ranks with equal losses are counted too

    def _total(self, count: Tensor) -> Any:
        # Nothing to count is nothing to learn from: the sum is 0 too.
        return collectives.reduce(count, self._world).clamp(min=1.0)

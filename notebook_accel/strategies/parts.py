"""What engines share that put each rank's parts of parameters in the place of a model's own."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from notebook_accel.config.wishes import Strategy
from notebook_accel.ranks.shards import part_like
from notebook_accel.ranks.world import World
from notebook_accel.strategies import sharding
from notebook_accel.strategies.base import Engine
from notebook_accel.strategies.precision import Precision


class PartsEngine(Engine):
    """An engine of which each rank holds parts; it knows what came in place of which parameter."""

    shares_states = True

    def __init__(self, wish: Strategy, world: World, precision: Precision) -> None:
        super().__init__(wish, world, precision)
        # DTensor advises, on every rank, to merge axes of a mesh: a wish has asked for each.
        logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
        self._moved: sharding.Moved = {}
        self._optimizers: list[Optimizer] = []

    def release(self) -> None:
        """Let go of all optimizers, and of the parameters that models have and had."""
        self._optimizers.clear()
        self._moved.clear()

    def current(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """Give the parameters that are trained now in place of those a model had before."""
        return [sharding.now(one, self._moved) for one in parameters]

    def has_whole_gradients(self, parameters: Sequence[Tensor]) -> bool:
        """Whether they lie on one mesh, so that torch asks the other ranks of it."""
        return len(sharding.by_mesh(parameters)) < 2

    def grad_norm(self, parameters: Iterable[Tensor], norm_type: float = 2.0) -> Tensor:
        """Measure the norm of all gradients together.

        Ranks: all ranks call it.
        """
        return sharding.total_norm(parameters, norm_type)

    def clip_grad_norm(
        self, parameters: Iterable[Tensor], max_norm: float, norm_type: float = 2.0
    ) -> Tensor:
        """Scale gradients so that their norm is at most ``max_norm``; give the norm before.

        Ranks: all ranks call it.
        """
        listed = list(parameters)
        norm = self.grad_norm(listed, norm_type)
        sharding.clip_to(listed, max_norm, norm)
        return norm

    def clip_grad_value(self, parameters: Iterable[Tensor], clip_value: float) -> None:
        """Limit every element of every gradient to ``[-clip_value, clip_value]``."""
        for group in sharding.by_mesh(parameters):  # one call of torch's takes no mixture
            super().clip_grad_value(group, clip_value)

    def load_state_dict(self, model: nn.Module, state: dict[str, Any]) -> None:
        """Load what ``state_dict`` gave, or the plain module's state; each rank takes its part."""
        inner = self.unwrap(model)
        own = inner.state_dict()
        inner.load_state_dict(
            {name: part_like(one, own[name]) if name in own else one for name, one in state.items()}
        )

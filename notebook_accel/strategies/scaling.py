"""The loss scale of fp16, which moves once an iteration however many optimizers step in it."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer


class LossScaler(torch.amp.GradScaler):
    """torch's GradScaler, whose ``update`` comes by itself, with the next backward.

    Two optimizers that step one after the other have gradients of one scale: were it moved in
    between, the second would divide by another scale than its loss was multiplied by, and forget
    that it was clipped.

    Source: torch.amp.GradScaler, whose arguments these are.
    """

    def __init__(self, device: str, **settings: Any) -> None:
        super().__init__(device, **settings)
        self._done: set[int] = set()  # optimizers that need their gradients no more

    def scale(self, outputs: Any) -> Any:
        """Multiply losses by the scale that this iteration has."""
        self._renew()
        return super().scale(outputs)

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of ``optimizer`` by the scale."""
        if id(optimizer) in self._done:
            self._renew()
        super().unscale_(optimizer)

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Step ``optimizer``, unless its gradients overflowed."""
        if id(optimizer) in self._done:
            self._renew()
        result = super().step(optimizer, *args, **kwargs)
        self._done.add(id(optimizer))
        return result

    def overflow(self, optimizer: Optimizer, device: torch.device) -> torch.Tensor:
        """Give what ``unscale_`` found, above zero an overflow; what is written there, it found.

        An optimizer none of whose parameters had gradients found nothing.
        """
        found = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        if not found:
            found[device] = torch.zeros((), device=device)
        total: torch.Tensor = next(iter(found.values()))
        return total

    def forget(self, optimizer: Optimizer) -> None:
        """Note that unscaled gradients were cleared without a step."""
        self._done.add(id(optimizer))

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Move the scale by what was found since the last time."""
        self._done.clear()
        super().update(new_scale)

    def get_scale(self) -> float:
        """Give the scale of the next loss."""
        self._renew()
        return super().get_scale()

    def state_dict(self) -> dict[str, Any]:
        """Give the scale and how it moves."""
        self._renew()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what ``state_dict`` gave."""
        self._renew()
        super().load_state_dict(state_dict)

    def _renew(self) -> None:
        if self._done:
            self.update()

"""DeepSpeed's loss scale of fp16, as torch's GradScaler tells of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def scaling_of(scaler: torch.amp.GradScaler) -> dict[str, float]:
    """Read how a loss scale starts and moves."""
    return {"init_scale": scaler.get_scale(), "growth_interval": scaler.get_growth_interval()}


class LossScale:
    """What a checkpoint keeps of a loss scale, and any other strategy goes on with.

    ``current`` gives DeepSpeed's own, None before a model is prepared; until then it is as
    ``scaling`` says.
    """

    def __init__(self, scaling: Mapping[str, float], current: Callable[[], Any]) -> None:
        self._scaling = scaling
        self._current = current

    def get_scale(self) -> float:
        """Give by what the next loss is multiplied."""
        scaler = self._current()
        return float(self._scaling["init_scale"] if scaler is None else scaler.cur_scale)

    def state_dict(self) -> dict[str, Any]:
        """Give the scale and how it moves, in torch's words."""
        scaler = self._current()
        steps = 0 if scaler is None else scaler.cur_iter - scaler.last_overflow_iter - 1
        return {
            "scale": self.get_scale(),
            "growth_factor": 2.0,
            "backoff_factor": 0.5,
            "growth_interval": int(self._scaling["growth_interval"]),
            "_growth_tracker": steps % int(self._scaling["growth_interval"]),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what ``state_dict`` gave, or torch's."""
        scaler = self._current()
        if scaler is not None:
            scaler.cur_scale = state["scale"]
            scaler.last_overflow_iter = scaler.cur_iter - 1 - state["_growth_tracker"]

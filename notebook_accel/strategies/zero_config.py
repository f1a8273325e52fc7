"""DeepSpeed's configuration for one model, sized by the model's width."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from notebook_accel.config import deepspeed_filled
from notebook_accel.config.deepspeed import DeepSpeed


def filled(
    wish: DeepSpeed, precision: str, scaling: Mapping[str, float], model: nn.Module | None = None
) -> dict[str, Any]:
    """Give the whole configuration by which ``model`` is trained.

    ``scaling`` are arguments of ``torch.amp.GradScaler``, which count where nothing else is said.

    Errors: ConfigError where the number format is not the run's.
    """
    width = None if model is None else _width(model)
    return deepspeed_filled.filled(wish, precision, scaling, width)


def _width(model: nn.Module) -> int | None:
    """Give the width of a model that says it, as transformers' do."""
    config = getattr(model, "config", None)
    for owner in (config, getattr(config, "text_config", None)):
        sizes = getattr(owner, "hidden_sizes", None)
        width = max(sizes) if sizes else getattr(owner, "hidden_size", None)
        if isinstance(width, int):
            return width
    return None

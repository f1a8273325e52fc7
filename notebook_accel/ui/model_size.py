"""What a model occupies while it trains, before any batch: arithmetic on sizes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from notebook_accel.errors import ConfigError

HALF_BYTES = 2
ADAM_MOMENTS = 2


@dataclass(frozen=True)
class ModelSize:
    """The size of a model: what is stored, and the part of it that learns."""

    num_parameters: int
    stored_bytes: int
    trainable_bytes: int
    num_castable: int

    @staticmethod
    def of(model: Any) -> ModelSize:
        """Measure a module, or take a number of parameters in float32; nothing is computed.

        Errors: ConfigError for anything else.
        """
        if isinstance(model, int) and not isinstance(model, bool) and model > 0:
            return ModelSize(model, 4 * model, 4 * model, model)
        if not callable(getattr(model, "parameters", None)):
            raise ConfigError(
                f"model={model!r:.60} has no size",
                "memory is told from a module's parameters, or from their number",
                "pass the module itself, or a number such as model=7_000_000_000",
            )
        parameters = list(model.parameters())
        stored = [*parameters, *model.buffers()]
        return ModelSize(
            sum(one.numel() for one in parameters),
            sum(one.numel() * one.element_size() for one in stored),
            sum(one.numel() * one.element_size() for one in parameters if one.requires_grad),
            sum(one.numel() for one in parameters if one.element_size() == 4),
        )


@dataclass(frozen=True)
class Footprint:
    """What one rank holds in one precision, in bytes, activations apart.

    ``copies`` are the half-precision copies of weights that autocast makes for a forward pass,
    ``buckets`` what DDP sends gradients from.
    """

    precision: str
    weights: int
    gradients: int
    adam: int
    copies: int
    buckets: int

    @property
    def total(self) -> int:
        """Everything together."""
        return self.weights + self.gradients + self.adam + self.copies + self.buckets


def footprint(size: ModelSize, precision: str, num_ranks: int, sharded: bool = False) -> Footprint:
    """Tell what one of ``num_ranks`` ranks holds when it trains by Adam in ``precision``.

    Weights, gradients and moments stay as they are stored, in float32 as a rule: smaller numbers
    are what a forward pass computes in. ``sharded``: each rank holds its share of them, and whole
    parts of the model, which are not counted, only while they compute.

    Source: Micikevicius et al. 2018, "Mixed precision training", section 3.1; Rajbhandari et al.
    2020, "ZeRO", section 5.
    """
    share = num_ranks if sharded else 1
    learning = size.trainable_bytes // share
    whole = not sharded or num_ranks == 1
    return Footprint(
        precision,
        size.stored_bytes // share,
        learning,
        ADAM_MOMENTS * learning,
        HALF_BYTES * size.num_castable if whole and precision != "no" else 0,
        learning if not sharded and num_ranks > 1 else 0,
    )

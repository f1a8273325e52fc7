"""Inference in stages, under the name that Accelerate has for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from torch import nn

from notebook_accel.config.wishes import Pipeline
from notebook_accel.errors import ConfigError
from notebook_accel.ranks.world import World
from notebook_accel.strategies.precision import Precision
from notebook_accel.strategies.registry import build
from notebook_accel.strategies.stages import beginnings


def prepare_pippy(
    model: nn.Module,
    split_points: str | Sequence[str] = "auto",
    no_split_module_classes: Collection[str] | None = None,
    example_args: tuple[Any, ...] = (),
    example_kwargs: dict[str, Any] | None = None,
    num_chunks: int | None = None,
    gather_output: bool = False,
) -> nn.Module:
    """Cut ``model`` into one stage for each rank, for inference; give it back.

    ``split_points`` name the modules where the second stage begins, the third, and so on; "auto"
    divides the model's blocks, or modules of ``no_split_module_classes``. A batch is cut into
    ``num_chunks`` parts, as many as ranks if nothing is said. The stages are traced with the first
    batch, so that examples are not needed; every rank gets the output, asked for or not.

    Ranks: all ranks call it with the same model, and then the model with the same batches.
    Errors: ConfigError for a model that cannot be cut so.
    """
    world = World.join()
    if isinstance(split_points, str) and split_points != "auto":
        raise ConfigError(
            f"prepare_pippy(split_points={split_points!r})",
            'it is "auto", or the names of the modules where stages begin',
            f"write split_points=[{split_points!r}]",
        )
    precision = Precision("no", world.device)
    if world.size == 1:  # nothing is cut
        return build(None, world, precision).place_for_evaluation(model)
    if isinstance(split_points, str):
        split = beginnings(model, world.size, None, no_split_module_classes or ())
    else:
        split = [*split_points]
    wish = Pipeline(world.size, num_chunks, "gpipe", tuple(split))
    return build(wish, world, precision).place_for_evaluation(model)

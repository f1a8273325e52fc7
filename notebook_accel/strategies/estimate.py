"""What ``estimate-memory`` tells of a model: its size, and what training it occupies."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from notebook_accel.config.budget import Training, budget
from notebook_accel.config.offers import offers
from notebook_accel.config.sizes import Sizes
from notebook_accel.strategies import named
from notebook_accel.strategies.measure import measure


def report(
    model_name: str,
    library_name: str | None,
    trust_remote_code: bool,
    input_shape: list[int] | None,
    batch_size: int,
    seq_length: int | None,
    precision: str,
    optimizer: str,
    num_processes: list[int],
    strategy: str | None = None,
) -> dict[str, Any]:
    """Measure a model and tell what training it occupies; plain data in, plain data out.

    Errors: ConfigError for a name that leads to no model, MissingPackage.
    """
    model, config, inputs = named.build(model_name, library_name, trust_remote_code)
    batch = _batch(model, config, inputs, input_shape, batch_size, seq_length)
    sizes = measure(model, batch, precision)
    if batch is None:
        said = "no input was given (--input_shape, or a function that returns one too)"
        sizes = Sizes(sizes.name, sizes.weights, sizes.buffers, None, said, sizes.largest)
    return {
        "sizes": _told(sizes),
        "input": "" if sizes.kept is None else sizes.kept.batch,
        "training": {
            str(ranks): list(_training(sizes, Training(ranks, precision, optimizer), strategy))
            for ranks in num_processes
        },
    }


def _training(sizes: Sizes, training: Training, strategy: str | None) -> Any:
    for one in offers(sizes, training.num_ranks):
        found = budget(one.wish, sizes, training)
        if found is not None and strategy in (None, one.kind):
            yield {"strategy": one.label, **found.as_data()}


def _told(sizes: Sizes) -> dict[str, Any]:
    name, largest = sizes.largest
    return {
        "name": sizes.name,
        "num_parameters": sizes.num_parameters,
        "num_trainable": sizes.num_trainable,
        "layer_name": name,
        "layer": largest,
        "activations": None if sizes.kept is None else sizes.kept.total,
        "recomputed": None if sizes.kept is None else sizes.kept.recomputed,
        "why": sizes.why,
    }


# ── what goes in ──────────────────────────────────────────────────────────────────────────────


def _batch(
    model: nn.Module, config: Any, given: Any, shape: list[int] | None, batch: int, seq: int | None
) -> Any:
    """Give a batch without values for one forward pass; None where nobody said what goes in."""
    if given is not None or shape is not None:
        return given if shape is None else _first_dtype(model, _empty(batch, *shape))
    main = getattr(model, "main_input_name", None)
    if config is None or main is None:
        return None
    if main == "pixel_values":
        side = getattr(config, "image_size", 224)
        sides = side if isinstance(side, (list, tuple)) else (side, side)
        return {main: _empty(batch, getattr(config, "num_channels", 3), *sides)}
    longest = getattr(config, "max_position_embeddings", None) or 512
    length = seq or min(512, longest)
    names = [main, *(["decoder_input_ids"] if getattr(config, "is_encoder_decoder", 0) else [])]
    return {name: _empty(batch, length).long() for name in names}


def _first_dtype(model: nn.Module, values: Tensor) -> Tensor:
    """Give token numbers to a model that begins with an embedding."""
    first = next((one for one in model.modules() if list(one.parameters(recurse=False))), None)
    return values.long() if isinstance(first, (nn.Embedding, nn.EmbeddingBag)) else values


def _empty(*shape: int) -> Tensor:
    return torch.empty(shape, device="meta")

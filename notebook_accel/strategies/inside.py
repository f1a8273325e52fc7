"""Layers of a stage divided over ranks: linear layers and embeddings that hold a part of them.

torch's own tensor parallelism cannot be traced into stages; these are Megatron's layers, whose
collectives are operators with gradients, so that a trace keeps them.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel
from torch.nn import functional

from notebook_accel.errors import ConfigError

# ── what ranks say to each other inside a layer ───────────────────────────────────────────────


@torch.library.custom_op("notebook_accel::enter", mutates_args=())
def enter(x: Tensor, group: str) -> Tensor:
    """Give ``x`` to every rank's part of a layer; backward adds up what they say of it."""
    return x.clone()


@torch.library.custom_op("notebook_accel::leave", mutates_args=())
def leave(x: Tensor, group: str) -> Tensor:
    """Add up what every rank's part of a layer gives."""
    return _add_up(x, group)


@torch.library.custom_op("notebook_accel::join", mutates_args=())
def join(x: Tensor, group: str, size: int, rank: int) -> Tensor:
    """Put the last dimension together of what every rank's part of a layer gives."""
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(size)]
    dist.all_gather(parts, x.contiguous(), group=_group(group))
    return torch.cat(parts, dim=-1)


@enter.register_fake
def _(x: Tensor, group: str) -> Tensor:
    return torch.empty_like(x)


@leave.register_fake
def _(x: Tensor, group: str) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@join.register_fake
def _(x: Tensor, group: str, size: int, rank: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] * size))


def _add_up(x: Tensor, group: str) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=_group(group))
    return total


def _group(name: str) -> Any:
    c10d: Any = dist.distributed_c10d
    return c10d._resolve_process_group(name)


def _entered(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.group = inputs[1]


def _joined(ctx: Any, inputs: Any, output: Any) -> None:
    _, ctx.group, ctx.size, ctx.rank = inputs


def _after_join(context: Any, grad: Tensor) -> tuple[Any, ...]:
    return grad.chunk(context.size, -1)[context.rank], None, None, None


enter.register_autograd(
    lambda context, grad: (leave(grad, context.group), None), setup_context=_entered
)
leave.register_autograd(lambda context, grad: (grad.clone(), None), setup_context=_entered)
join.register_autograd(_after_join, setup_context=_joined)


# ── layers ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Ranks:
    """The ranks that compute layers together: their group's name, their number, which is this."""

    group: str
    size: int
    rank: int


def columns(layer: nn.Linear, ranks: Ranks, joins: bool, x: Tensor) -> Tensor:
    """Compute this rank's outputs of ``layer``, and put all together if ``joins``."""
    own: Tensor = functional.linear(enter(x, ranks.group), layer.weight, layer.bias)
    return join(own, ranks.group, ranks.size, ranks.rank) if joins else own


def rows(layer: nn.Linear, ranks: Ranks, x: Tensor) -> Tensor:
    """Compute ``layer`` from this rank's inputs of it, and add up."""
    total: Tensor = leave(functional.linear(x, layer.weight), ranks.group)
    return total if layer.bias is None else total + layer.bias


def words(layer: nn.Embedding, ranks: Ranks, ids: Tensor) -> Tensor:
    """Look up the words that this rank has; the other ranks have the others."""
    num = layer.num_embeddings // ranks.size
    own = ids - ranks.rank * num
    has = (own >= 0) & (own < num)
    found = functional.embedding(own.clamp(0, num - 1), layer.weight)
    total: Tensor = leave(found * has.unsqueeze(-1).to(found.dtype), ranks.group)
    return total


def features(layer: nn.Embedding, ranks: Ranks, joins: bool, ids: Tensor) -> Tensor:
    """Look up this rank's features of every word, and put all together if ``joins``."""
    own = functional.embedding(ids, layer.weight)
    return join(own, ranks.group, ranks.size, ranks.rank) if joins else own


@dataclass(frozen=True)
class Divided:
    """A layer of which each rank holds a part: how it runs, and which dimension is divided."""

    layer: nn.Module
    forward: Any
    dims: Mapping[str, int]


def divided(name: str, layer: nn.Module, style: ParallelStyle, ranks: Ranks) -> Divided:
    """Say how ``layer`` is divided over ``ranks``.

    Errors: ConfigError for a kind of layer, or of division, that stages do not have.
    """
    is_columns, is_rows = isinstance(style, ColwiseParallel), isinstance(style, RowwiseParallel)
    joins = is_columns and style.output_layouts[0].is_replicate()  # type: ignore[attr-defined]
    if type(layer) is nn.Linear and is_columns:
        return Divided(layer, partial(columns, layer, ranks, joins), {"weight": 0, "bias": 0})
    if type(layer) is nn.Linear and is_rows:
        return Divided(layer, partial(rows, layer, ranks), {"weight": 1})
    if isinstance(layer, nn.Embedding) and layer.padding_idx is None and layer.max_norm is None:
        if is_columns:
            return Divided(layer, partial(features, layer, ranks, joins), {"weight": 1})
        if is_rows:
            return Divided(layer, partial(words, layer, ranks), {"weight": 0})
    raise ConfigError(
        f"{name} ({type(layer).__name__}) is to be divided by {type(style).__name__} in a pipeline",
        "inside a stage linear layers and embeddings (without padding_idx and max_norm) are "
        "divided, colwise or rowwise",
        f"leave {name} out of the plan, or use TensorParallel without a pipeline",
    )


@contextmanager
def running(layers: list[Divided]) -> Iterator[None]:
    """Let ``layers`` run divided inside the block, to be traced so."""
    for one in layers:
        one.layer.forward = one.forward
    try:
        yield
    finally:
        for one in layers:
            del one.layer.forward

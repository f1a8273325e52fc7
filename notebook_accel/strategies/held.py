"""What this rank holds of a model and its training, counted on the tensors themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Held:
    """Bytes of this rank; ``whole`` is what all parameters have together, over all ranks."""

    parameters: int
    buffers: int
    gradients: int
    optimizer: int
    whole: int


def held(models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> Held:
    """Count what this rank holds; a tensor that is met twice counts once."""
    listed = list(models)
    parameters = _unique(one for model in listed for one in model.parameters())
    buffers = _unique(one for model in listed for one in model.buffers())
    states = _unique(
        one
        for optimizer in optimizers
        for one in tree_leaves(dict(optimizer.state))
        if isinstance(one, Tensor)
    )
    return Held(
        sum(map(_here, parameters)),
        sum(map(_here, buffers)),
        sum(_here(one.grad) for one in parameters if one.grad is not None),
        sum(map(_here, states)),
        sum(one.nbytes for one in parameters),
    )


def _unique(tensors: Iterable[Tensor]) -> list[Tensor]:
    return list({id(one): one for one in tensors}.values())


def _here(one: Tensor) -> int:
    part = one.to_local() if isinstance(one, DTensor) else one
    # What was let go has its shape still, and nothing behind it.
    return 0 if part.is_meta else min(part.nbytes, part.untyped_storage().nbytes())

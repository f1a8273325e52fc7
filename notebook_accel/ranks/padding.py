"""Rows added to a batch so that it divides evenly."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from notebook_accel.ranks.collectives import map_tensors


def pad_input_tensors(tensor: Any, batch_size: int, num_processes: int, dim: int = 0) -> Any:
    """Lengthen dimension ``dim`` of every tensor to the next multiple of ``num_processes``.

    The last row is repeated: whatever a model does with real rows, it can do with these. Tensors
    whose dimension is not ``batch_size`` long are no part of the batch and stay as they are.
    """
    missing = -batch_size % num_processes

    def pad(one: Tensor) -> Tensor:
        if not missing or one.dim() <= dim or one.shape[dim] != batch_size:
            return one
        last = one.narrow(dim, batch_size - 1, 1)
        return torch.cat([one, last.expand(*_with(one.shape, dim, missing))], dim)

    return map_tensors(pad, tensor)


def _with(shape: torch.Size, dim: int, length: int) -> list[int]:
    sizes = list(shape)
    sizes[dim] = length
    return sizes

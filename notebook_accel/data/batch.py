"""What can be done with a batch, whatever it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from notebook_accel.ranks.collectives import map_tree
from notebook_accel.ranks.plain import is_array


def to_device(batch: Any, device: torch.device, non_blocking: bool = False) -> Any:
    """Move every tensor (and whatever else has ``to``) of a batch to ``device``."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.to(device, non_blocking=non_blocking)
        return leaf.to(device) if hasattr(leaf, "to") else leaf

    # Containers that can move themselves know what must stay (a PackedSequence's batch sizes).
    return map_tree(move, batch, is_leaf=lambda one: hasattr(one, "to"))


def num_rows(batch: Any) -> int:
    """How many samples a batch holds, by the first tensor or list in it; 0 when nobody can say."""
    if type(batch) is list and batch and type(batch[0]) is Tensor and batch[0].dim():
        return len(batch[0])  # what a loader of pairs gives: asked for every batch
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.dim() else 1
    if isinstance(batch, (list, tuple)) and batch:
        if not isinstance(batch[0], (Tensor, list, tuple, Mapping)) and not is_array(batch[0]):
            return len(batch)
        return num_rows(batch[0]) or len(batch)  # or a list of dicts of numbers, one a sample
    if isinstance(batch, Mapping) and batch:
        return num_rows(next(iter(batch.values())))
    return len(batch) if is_array(batch) and batch.ndim else 0

"""Tensors of which each rank holds a part: made whole, and cut up again.

A sharded tensor is torch's ``DTensor``. It is known by its ``full_tensor``, so that nobody imports
``torch.distributed.tensor`` who has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from notebook_accel.ranks.collectives import map_tensors


def is_sharded(value: Any) -> bool:
    """Tell whether ``value`` is a tensor that lies across ranks."""
    return isinstance(value, Tensor) and hasattr(value, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """Give the whole of a tensor; one that is not sharded as it is.

    Ranks: all ranks that hold a part call it; all get the whole.
    """
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def wholes(tree: Any, keep: bool) -> Any:
    """Give ``tree`` with whole tensors in the memory of the CPU, one at a time.

    Where ``keep`` is false they are empty: this rank only helps the others.

    Ranks: all ranks that hold a part call it.
    """

    def one(tensor: Tensor) -> Tensor:
        if not is_sharded(tensor):
            return tensor
        full = whole(tensor.detach())
        return full.cpu() if keep else torch.empty(0, dtype=full.dtype)

    return map_tensors(one, tree)


def part_like(full: Tensor, other: Tensor) -> Tensor:
    """Cut this rank's part out of ``full``, as ``other`` is cut; nothing if it is not.

    Ranks: no rank waits for another: each has the whole.
    """
    if not is_sharded(other) or is_sharded(full):
        return full
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = other.device_mesh, other.placements  # type: ignore[attr-defined]
    on_device = full.to(other.device)
    return distribute_tensor(on_device, mesh, placements, src_data_rank=None)


def parts_like(tree: dict[str, Any], parameters: Sequence[Tensor]) -> dict[str, Any]:
    """Cut the state of an optimizer up as its ``parameters`` are, in its own numbering.

    Ranks: no rank waits for another.
    """
    if not any(map(is_sharded, parameters)):
        return tree
    state = {
        index: {
            name: part_like(one, parameters[index])
            if isinstance(one, Tensor) and one.shape == parameters[index].shape
            else one
            for name, one in entry.items()
        }
        for index, entry in tree.get("state", {}).items()
    }
    return {**tree, "state": state}


def local(tensor: Tensor) -> Tensor:
    """Give what of ``tensor`` lies on this rank."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]

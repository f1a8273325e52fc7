"""Debug mode: before a collective, ranks compare what they bring.

It costs one more collective each time, so it is off unless ACCELERATE_DEBUG_MODE asks for it.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from notebook_accel.errors import DistributedOperationException
from notebook_accel.ranks import watch


def check_alike(
    operation: str, tensors: list[Tensor], size: int, free_dim: int | None = None
) -> None:
    """Refuse tensors whose shapes or dtypes differ between the ``size`` ranks.

    Shapes: dimension ``free_dim`` may differ.
    Ranks:  all ranks call it; all raise.
    Errors: DistributedOperationException naming the operation and what each rank brought.
    """
    mine = [(_shape(tensor, free_dim), str(tensor.dtype), list(tensor.shape)) for tensor in tensors]
    every: list[Any] = [None] * size
    watch.all_gather_object(every, mine)
    if all(_wanted(one) == _wanted(every[0]) for one in every):
        return
    brought = ", ".join(f"rank {rank} {_words(one)}" for rank, one in enumerate(every))
    raise DistributedOperationException(
        f"{operation} got tensors that do not fit together: {brought}",
        "a collective needs the same number of tensors, of the same shapes and dtypes, from every "
        "rank",
        "use pad_across_processes before, gather_for_metrics for a shorter last batch, or its "
        "use_gather_object=True for rows of any shape",
    )


def _shape(tensor: Tensor, free_dim: int | None) -> list[int]:
    shape = list(tensor.shape)
    if free_dim is not None and -len(shape) <= free_dim < len(shape):
        shape[free_dim] = -1
    return shape


def _wanted(brought: list[Any]) -> list[Any]:
    return [(shape, dtype) for shape, dtype, _ in brought]


def _words(brought: list[Any]) -> str:
    words = [f"{shape} {dtype.removeprefix('torch.')}" for _, dtype, shape in brought]
    return " and ".join(words) or "nothing"

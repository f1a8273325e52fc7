"""What ranks say to each other, for code that holds no Accelerator.

Each function asks the ranks that are there (``PartialState``), which join if nobody has yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from notebook_accel.config.fields import choose
from notebook_accel.config.kinds import RNGType
from notebook_accel.ranks import collectives, seeding, watch
from notebook_accel.runtime.faces import PartialState


def gather(tensor: Any) -> Any:
    """Concatenate tensors (or trees of them) over the ranks along dimension 0.

    Shapes: ``[n, ...]`` gives ``[num_processes * n, ...]``, a 0-d tensor ``[num_processes]``.
    Ranks:  all ranks call it, with equal shapes.
    """
    return PartialState().gather(tensor)


def gather_object(object: Any) -> list[Any]:
    """Collect what every rank brings: lists are joined into one, anything else is one entry a rank.

    Ranks: all ranks call it.
    """
    state = PartialState()
    state._boundary()
    return collectives.gather_object(object, state._world)


def reduce(tensor: Any, reduction: str = "mean", scale: float = 1.0) -> Any:
    """Combine tensors elementwise over the ranks: "mean", "sum", "max" or "min".

    Ranks: all ranks call it, with equal shapes.
    """
    return PartialState().reduce(tensor, reduction, scale)


def pad_across_processes(
    tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False
) -> Any:
    """Lengthen dimension ``dim`` of tensors to the longest rank's, with ``pad_index``.

    Ranks: all ranks call it.
    """
    return PartialState().pad_across_processes(tensor, dim, pad_index, pad_first)


def broadcast(tensor: Any, from_process: int = 0) -> Any:
    """Copy the tensors of rank ``from_process`` into every rank's, in place; gives them back.

    Of a number or an array it gives a tensor.

    Ranks: all ranks call it, with equal shapes and dtypes.
    """
    state = PartialState()
    state._boundary()

    def receive(one: Tensor) -> Tensor:
        with torch.no_grad():
            return one.copy_(collectives.broadcast(one, state._world, from_process))

    tree = collectives.in_tensors("broadcast", tensor, state.device)
    return collectives.map_tensors(receive, tree)


def broadcast_object_list(object_list: list[Any], from_process: int = 0) -> list[Any]:
    """Put the objects of rank ``from_process`` into every rank's list, in place; gives it back.

    Ranks: all ranks call it, with lists of the same length.
    """
    state = PartialState()
    state._boundary()
    if state.num_processes > 1:
        watch.broadcast_object_list(object_list, src=from_process)
    return object_list


def synchronize_rng_states(
    rng_types: Iterable[str | RNGType], generator: torch.Generator | None = None
) -> None:
    """Give every rank rank 0's state of the given sources of random numbers.

    They are "torch", "generator" (``generator``'s), or a device's ("cuda", "xpu", ...).

    Ranks: all ranks call it.
    Errors: ConfigError for an unknown source.
    """
    for one in rng_types:
        synchronize_rng_state(RNGType(choose(one, "rng_types", RNGType.list())), generator)


def synchronize_rng_state(
    rng_type: RNGType | None = None, generator: torch.Generator | None = None
) -> None:
    """Give every rank rank 0's state of one source of random numbers.

    Ranks: all ranks call it.
    """
    world = PartialState()._world
    if rng_type == RNGType.GENERATOR:
        if generator is not None:
            seeding.share_generator(generator, world)
    elif rng_type is not None:
        seeding.share_rng_states([rng_type], world)


def wait_for_everyone() -> None:
    """Wait until all ranks are here.

    Ranks: all ranks call it.
    """
    PartialState().wait_for_everyone()

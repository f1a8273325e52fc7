"""Which rank this process is, without joining anybody: for log lines, bars and decorators."""

from __future__ import annotations

import sys
from dataclasses import replace

from notebook_accel.config.placement import Placement
from notebook_accel.events import context


def placement_here() -> Placement:
    """Give this process's place as far as it is known now; makes no process group.

    The launch's word counts, else torchrun's environment; the ranks of a process group that exists
    count before both. Without any: a world of one.
    """
    worker = context.current()
    placement = Placement.from_env() if worker is None else worker.placement
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return replace(placement, rank=dist.get_rank(), size=dist.get_world_size())
    return placement

"""A whole copy of the model on every rank; gradients are averaged after each backward."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from notebook_accel.config.wishes import DDP
from notebook_accel.ranks.collectives import broadcast
from notebook_accel.ranks.world import World
from notebook_accel.strategies.base import Engine, Layout
from notebook_accel.strategies.precision import Precision


class DDPEngine(Engine):
    """Data parallelism by torch's DistributedDataParallel, over gloo or nccl."""

    def __init__(self, wish: DDP, world: World, precision: Precision) -> None:
        super().__init__(wish, world, precision)
        self.layout = Layout(world.rank, world.size)
        # Only what was asked for: torch renames arguments, and warns of old names.
        self._arguments = {
            one.name: getattr(wish, one.name)
            for one in fields(wish)
            if getattr(wish, one.name) != one.default
        }

    def place(self, model: nn.Module, device_placement: bool = True) -> nn.Module:
        """Move ``model``, start it from rank 0's parameters and let its gradients be averaged."""
        if isinstance(model, DistributedDataParallel):  # wrapped before: only the precision is ours
            super().place(model.module, device_placement)
            return model
        model = super().place(model, device_placement)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            share_state(model, self.world)  # nothing to average, and torch refuses to wrap it
            return model
        gpu = self.world.device if self.world.device.type == "cuda" and device_placement else None
        return DistributedDataParallel(
            model, device_ids=None if gpu is None else [gpu.index], **self._arguments
        )

    def unwrap(self, model: nn.Module, keep_fp32_wrapper: bool = True) -> nn.Module:
        """Give the person's own module back."""
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        return super().unwrap(inner, keep_fp32_wrapper)

    def set_sync(self, model: nn.Module, sync: bool) -> None:
        """Say whether the next backward through ``model`` averages gradients over ranks."""
        if isinstance(model, DistributedDataParallel):
            model.require_backward_grad_sync = sync


def share_state(model: nn.Module, world: World) -> None:
    """Copy rank 0's parameters and buffers into every rank's ``model``.

    Ranks: all ranks call it, with models of the same shapes.
    """
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.copy_(broadcast(tensor, world))

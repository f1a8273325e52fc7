"""A whole copy of the model on every rank; gradients are averaged after each backward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from notebook_accel.config.wishes import DDP
from notebook_accel.events.pulse import BACKWARD
from notebook_accel.ranks import watch
from notebook_accel.ranks.collectives import broadcast
from notebook_accel.ranks.world import World
from notebook_accel.strategies.base import Engine, Layout
from notebook_accel.strategies.batchnorm import let_batch_norms_meet
from notebook_accel.strategies.gradient_hooks import compress_gradients
from notebook_accel.strategies.precision import Precision

_averages = attrgetter("require_backward_grad_sync")


class DDPEngine(Engine):
    """Data parallelism by torch's DistributedDataParallel, over gloo or nccl."""

    def __init__(self, wish: DDP, world: World, precision: Precision) -> None:
        super().__init__(wish, world, precision)
        self.layout = Layout(world.rank, world.size)
        # Only what was asked for: torch renames arguments, and warns of old names.
        self._arguments = {
            one.name: getattr(wish, one.name)
            for one in fields(wish)
            if not one.name.startswith("comm_") and getattr(wish, one.name) != one.default
        }
        self._hook = (wish.comm_hook, wish.comm_wrapper, wish.comm_state_option)
        self._wrapped: list[DistributedDataParallel] = []

    def release(self) -> None:
        """Let go of all models."""
        self._wrapped.clear()

    def place(self, model: nn.Module, device_placement: bool = True) -> nn.Module:
        """Move ``model``, start it from rank 0's parameters and let its gradients be averaged."""
        if isinstance(model, DistributedDataParallel):  # wrapped before: only the precision is ours
            super().place(model.module, device_placement)
            return self._take(model)
        model = super().place(model, device_placement)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            share_state(model, self.world)  # nothing to average, and torch refuses to wrap it
            return model
        let_batch_norms_meet(model, self.world.device)
        gpu = self.world.device if self.world.device.type == "cuda" and device_placement else None
        wrapped = DistributedDataParallel(
            model, device_ids=None if gpu is None else [gpu.index], **self._arguments
        )
        if self.world.is_fake:  # nobody sends; what all ranks have alike is its own mean
            wrapped.register_comm_hook(None, _as_it_is)
        else:
            compress_gradients(wrapped, *self._hook)
        return self._take(wrapped)

    def _take(self, wrapped: DistributedDataParallel) -> DistributedDataParallel:
        """Answer for ``wrapped`` from now on; its forward too waits for other ranks at times."""
        self._wrapped.append(wrapped)
        sends_buffers = wrapped.broadcast_buffers and any(True for _ in wrapped.buffers())
        # In the first forward after an averaged backward, ranks agree on new buckets.
        rebuilds = wrapped.static_graph or not wrapped.find_unused_parameters
        if self._pulse is not None and (sends_buffers or rebuilds):
            watch.watch_forward(
                wrapped,
                wrapped.module,
                self._pulse,
                lambda model: not sends_buffers and bool(model._has_rebuilt_buckets),
            )
        return wrapped

    def describe(self, model: nn.Module) -> str:
        """Say in a few words what became of ``model``."""
        if not isinstance(model, DistributedDataParallel):
            return ""
        return "wrapped in DistributedDataParallel, which averages gradients over the ranks"

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Add the gradients of ``loss``; ranks wait for each other where they are averaged."""
        pulse = self._pulse
        if pulse is None or not any(map(_averages, self._wrapped)):
            super().backward(loss, **kwargs)
            return
        pulse.enter(BACKWARD)
        pulse.quiet = True  # gradient hooks of torch's call collectives too
        try:
            super().backward(loss, **kwargs)
        finally:
            pulse.quiet = False
        pulse.leave()

    def unwrap(self, model: nn.Module, keep_fp32_wrapper: bool = True) -> nn.Module:
        """Give the person's own module back."""
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        return super().unwrap(inner, keep_fp32_wrapper)

    def set_sync(self, model: nn.Module, sync: bool) -> None:
        """Say whether the next backward through ``model`` averages gradients over ranks."""
        if isinstance(model, DistributedDataParallel) and id(model) not in self._apart:
            model.require_backward_grad_sync = sync

    def syncs(self, model: nn.Module) -> bool:
        """Whether the next backward through ``model`` averages gradients over ranks."""
        return not isinstance(model, DistributedDataParallel) or _averages(model)


def _as_it_is(state, bucket):  # type: ignore[no-untyped-def] # torch wants no strings there
    """Give a bucket of gradients back as what all ranks have together."""
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


@contextmanager
def sync_next_backward(model: nn.Module) -> Iterator[None]:
    """Average gradients in a backward inside the block, although its forward was in ``no_sync``.

    Ranks: all ranks enter it. Models of one rank have nothing to average.
    """
    if not isinstance(model, DistributedDataParallel):
        yield
        return
    before = model.require_backward_grad_sync
    model.require_backward_grad_sync = True
    model.require_forward_param_sync = True
    model.reducer.prepare_for_backward([])
    try:
        yield
    finally:
        model.require_backward_grad_sync = before


def share_state(model: nn.Module, world: World) -> None:
    """Copy rank 0's parameters and buffers into every rank's ``model``.

    Ranks: all ranks call it, with models of the same shapes.
    """
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.copy_(broadcast(tensor, world))

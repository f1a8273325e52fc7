"""A model that runs in stages: this rank's stage of it, traced for each shape of batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from notebook_accel.config.wishes import Pipeline
from notebook_accel.events import tasks
from notebook_accel.ranks import watch
from notebook_accel.ranks.collectives import map_tensors
from notebook_accel.strategies import stages
from notebook_accel.strategies.precision import MixedForward, Precision, plain_forward


class Staged:
    """One model, its stages as this rank runs them, and which parameter is whose.

    What was traced fits one shape of micro-batch: each new shape is traced once. ``sync`` says
    whether the next backward ends a window, ``is_old`` whether other ranks may have newer
    parameters of their stages.
    """

    def __init__(
        self,
        model: nn.Module,
        wish: Pipeline,
        group: Any,
        precision: Precision,
        device: torch.device,
    ) -> None:
        self.begins = stages.beginnings(model, wish.stages, wish.split)
        self.sync = True
        self.is_old = False
        self._model = model
        self._wish = wish
        self._group = group
        self._precision = precision
        self._device = device
        self._loss = stages.MeanLoss()
        self._schedules: dict[Any, tuple[Any, Any]] = {}
        self._owners: dict[str, int] = {}
        self._stage = dist.get_rank(group)
        self._last = dist.get_global_rank(group, wish.stages - 1)

    def train(
        self, args: tuple[Any, ...], targets: Any, loss_fn: Callable[..., Tensor], weight: float
    ) -> Tensor:
        """Add the gradients of this rank's stage; give the loss, unweighted."""
        num_rows, num_parts = self._parts(args)
        schedule, structure = self._schedule(args, {}, num_parts, trains=True)
        self.is_old = True
        is_last = self._stage == self._wish.stages - 1
        loss = torch.zeros((), device=self._device)
        with torch.enable_grad():
            if is_last:

                def of_flat(outputs: Any, part: Any) -> Tensor:
                    return loss_fn(stages.shaped(outputs, structure), part)

                self._loss.begin(of_flat, targets, weight / num_parts)
                rows = torch.arange(num_rows)
                schedule.step(target=rows, losses=[], return_outputs=False)
                loss = self._loss.end().to(self._device)
            else:
                schedule.step(*(args if self._stage == 0 else ()), return_outputs=False)
        watch.broadcast(loss, self._last, group=self._group)
        return loss

    def evaluate(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the stages forward; give the output on every rank of the pipeline."""
        _, num_parts = self._parts((args, kwargs))
        schedule, structure = self._schedule(args, kwargs, num_parts, trains=False)
        with torch.no_grad():
            given = (args, kwargs) if self._stage == 0 else ((), {})
            outputs = schedule.step(*given[0], **given[1])
        told = [map_tensors(Tensor.cpu, outputs)]
        watch.broadcast_object_list(told, self._last, group=self._group)
        return stages.shaped(map_tensors(self._arrive, told[0]), structure)

    def own_parameters(self) -> list[nn.Parameter]:
        """List the parameters of this rank's stage that have gradients."""
        return [
            one
            for name, one in self._model.named_parameters()
            if self._owners.get(name) == self._stage and one.grad is not None
        ]

    def stages_by_id(self) -> dict[int, int]:
        """Say which stage has each parameter, by its id; nothing before the first batch."""
        every = dict(self._model.named_parameters())
        return {id(every[name]): stage for name, stage in self._owners.items() if name in every}

    def refresh(self) -> None:
        """Bring all parameters and buffers from the ranks whose stages have them."""
        with torch.no_grad():
            for name, one in stages.named_tensors(self._model):
                if name in self._owners:
                    source = dist.get_global_rank(self._group, self._owners[name])
                    sent = one.detach().contiguous()
                    watch.broadcast(sent, source, group=self._group)
                    if sent.data_ptr() != one.data_ptr():
                        one.copy_(sent)
        self.is_old = False

    def _parts(self, tree: Any) -> tuple[int, int]:
        rows = stages.num_rows(tree)
        return rows, stages.num_microbatches(rows, self._wish.num_microbatches or self._wish.stages)

    def _schedule(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], num_parts: int, trains: bool
    ) -> tuple[Any, Any]:
        shapes: list[Any] = []
        map_tensors(lambda one: shapes.append((tuple(one.shape), one.dtype)), [args, kwargs])
        model = self._model
        modes = tuple(one.training for one in model.modules())
        frozen = tuple(one.requires_grad for one in model.parameters())
        key = (trains, modes, frozen, num_parts, tuple(shapes), tuple(kwargs))
        if key not in self._schedules:
            with tasks.task(f"cutting {type(model).__name__} into stages"):
                self._schedules[key] = self._new_schedule(args, kwargs, num_parts, trains)
        return self._schedules[key]

    def _new_schedule(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], num_parts: int, trains: bool
    ) -> tuple[Any, Any]:
        from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

        def first(one: Tensor) -> Tensor:
            return one[: one.shape[0] // num_parts] if one.dim() else one

        forward = vars(self._model).get("forward")
        plain_forward(self._model)
        try:
            with self._precision.autocast():  # what is traced has the dtypes, but not the casts
                pipe, structure = stages.cut(
                    self._model, self.begins, map_tensors(first, args), map_tensors(first, kwargs)
                )
        finally:
            if forward is not None:
                self._model.forward = forward
        for name, stage in stages.owners(self._model, pipe).items():
            self._owners.setdefault(name, stage)
        stage = pipe.build_stage(self._stage, self._device, self._group)
        stage.submod.forward = MixedForward(stage.submod.forward, self._precision)
        stage.submod.forward.upcasts = False  # it goes on to the next stage
        kind = ScheduleGPipe if self._wish.schedule == "gpipe" or not trains else Schedule1F1B
        # Our weights: torch would divide the sum of a whole window after each batch.
        loss = self._loss if trains else None
        return kind(stage, num_parts, loss, scale_grads=False), structure

    def _arrive(self, tensor: Tensor) -> Tensor:
        forward = vars(self._model).get("forward")
        is_half = tensor.dtype in (torch.float16, torch.bfloat16)
        upcasts = isinstance(forward, MixedForward) and forward.upcasts
        full = tensor.float() if is_half and upcasts and self._precision.dtype else tensor
        return full.to(self._device)

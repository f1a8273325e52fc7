"""A model that runs in stages: this rank's stages of it, traced for each shape of batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from notebook_accel.config.wishes import Pipeline
from notebook_accel.events import tasks
from notebook_accel.ranks import watch
from notebook_accel.ranks.collectives import half_to_full, map_tensors, tensors_of
from notebook_accel.strategies import stages
from notebook_accel.strategies.again import again
from notebook_accel.strategies.batchnorm import refuse_to_meet
from notebook_accel.strategies.holdings import Holdings
from notebook_accel.strategies.inside import Divided, running
from notebook_accel.strategies.precision import MixedForward, Precision, plain_forward
from notebook_accel.strategies.sharding import Moved


class Staged:
    """One model, and its stages as this rank runs them.

    What was traced fits one shape of micro-batch: each new shape is traced once. The first trace
    shows which parameter is whose: ``settled`` hears of parameters that are others from then on.
    ``sync`` says whether the next backward ends a window, and ``is_apart`` whether gradients are
    never averaged over copies. Stages are compiled with ``compiler``, arguments of torch.compile.
    """

    def __init__(
        self,
        model: nn.Module,
        wish: Pipeline,
        group: Any,
        holdings: Holdings,
        layers: list[Divided],
        settled: Callable[[Moved], None],
        precision: Precision,
        device: torch.device,
    ) -> None:
        self.begins = stages.beginnings(model, wish.stages, wish.split)
        self.holdings = holdings
        self.sync = True
        self.is_apart = False
        self.compiler: Mapping[str, Any] | None = None
        self._model = model
        self._wish = wish
        self._group = group
        self._layers = layers
        self._settled = settled
        self._precision = precision
        self._device = device
        self._loss = stages.MeanLoss()
        self._schedules: dict[Any, tuple[Any, Any]] = {}
        self._rank = dist.get_rank(group)
        self._last = dist.get_global_rank(group, wish.num_ranks - 1)
        self._is_last = self._rank == wish.num_ranks - 1

    def train(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        targets: Any,
        loss_fn: Callable[..., Tensor],
        weight: float | Tensor,
    ) -> Tensor:
        """Add the gradients of this rank's stages; give the loss, unweighted.

        At the end of a window they are averaged over the readers of data.
        """
        num_rows, num_parts = self._parts((args, kwargs))
        schedule, structure = self._schedule(args, kwargs, num_parts, trains=True)
        loss = torch.zeros((), device=self._device)
        given = (args, kwargs) if self._rank == 0 else ((), {})
        self.holdings.open_batch()
        with self.holdings.gathered(), torch.enable_grad():
            self.holdings.before_forward(self.sync)
            if self._is_last:

                def of_flat(outputs: Any, part: Any) -> Tensor:
                    return loss_fn(stages.shaped(outputs, structure), part)

                self._loss.begin(of_flat, targets, weight / num_parts)
                rows = torch.arange(num_rows)
                ends = {"target": rows, "losses": [], "return_outputs": False}
                schedule.step(*given[0], **ends, **given[1])
                loss = self._loss.end().to(self._device)
            else:
                schedule.step(*given[0], return_outputs=False, **given[1])
        watch.broadcast(loss, self._last, group=self._group)
        self.holdings.close_batch(self.sync, self.is_apart)
        return loss

    def evaluate(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the stages forward; give the output on every rank of the pipeline."""
        _, num_parts = self._parts((args, kwargs))
        schedule, structure = self._schedule(args, kwargs, num_parts, trains=False)
        given = (args, kwargs) if self._rank == 0 else ((), {})
        with self.holdings.gathered(), torch.no_grad():
            self.holdings.before_forward(syncs=False)
            outputs = schedule.step(*given[0], **given[1])
        told = [map_tensors(Tensor.cpu, outputs)]
        watch.broadcast_object_list(told, self._last, group=self._group)
        return stages.shaped(map_tensors(self._arrive, told[0]), structure)

    def _parts(self, tree: Any) -> tuple[int, int]:
        rows, wish = stages.num_rows(tree), self._wish
        num_ranks = 1 if wish.stages_per_rank == 1 else wish.num_ranks
        wanted = wish.num_microbatches or wish.stages
        return rows, stages.num_microbatches(rows, wanted, num_ranks)

    def _schedule(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], num_parts: int, trains: bool
    ) -> tuple[Any, Any]:
        shapes = tuple((tuple(one.shape), one.dtype) for one in tensors_of([args, kwargs]))
        model = self._model
        modes = tuple(one.training for one in model.modules())
        frozen = tuple(one.requires_grad for one in model.parameters())
        key = (trains, modes, frozen, num_parts, shapes, tuple(kwargs))
        if key not in self._schedules:
            with tasks.task(f"cutting {type(model).__name__} into stages"):
                self._schedules[key] = self._new_schedule(args, kwargs, num_parts, trains)
        return self._schedules[key]

    def _new_schedule(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], num_parts: int, trains: bool
    ) -> tuple[Any, Any]:
        def first(one: Tensor) -> Tensor:
            return one[: one.shape[0] // num_parts] if one.dim() else one

        refuse_to_meet(self._model)
        forward = vars(self._model).get("forward")
        plain_forward(self._model)
        try:
            # What is traced under autocast has the dtypes, but not the casts.
            with self.holdings.hollow(), running(self._layers), self._precision.autocast():
                pipe, structure = stages.cut(
                    self._model, self.begins, map_tensors(first, args), map_tensors(first, kwargs)
                )
                users = stages.users(self._model, pipe)
        finally:
            if forward is not None:
                self._model.forward = forward
        num_ranks = self._wish.num_ranks
        ranks = {name: tuple({i % num_ranks: None for i in found}) for name, found in users.items()}
        self._settled(self.holdings.settle(ranks))
        mine = range(self._rank, self._wish.stages, num_ranks)
        own = [self._stage(pipe.build_stage(i, self._device, self._group)) for i in mine]
        # Our weights: torch would divide the sum of a whole window after each batch. Its schedules
        # that take turns need as many parts as ranks.
        loss = self._loss if trains else None
        kind = self._kind(forwards_first=not trains or num_parts < num_ranks)
        return kind(own if len(own) > 1 else own[0], num_parts, loss, scale_grads=False), structure

    def _stage(self, stage: Any) -> Any:
        forward = stage.submod.forward
        if self._wish.data is not None and self._wish.data.activation_checkpointing:
            forward = partial(again, forward, stage.submod)
        stage.submod.forward = MixedForward(partial(_to_send, forward), self._precision)
        stage.submod.forward.upcasts = False  # it goes on to the next stage
        if self.compiler is not None:
            # Of a graph's forward torch reads the code, which ours has not.
            stage.submod.forward.__code__ = type(stage.submod).forward.__code__
            stage.submod.compile(**self.compiler)
        return stage

    def _kind(self, forwards_first: bool) -> Any:
        from torch.distributed.pipelining import (
            Schedule1F1B,
            ScheduleGPipe,
            ScheduleInterleaved1F1B,
            ScheduleLoopedBFS,
        )

        forwards_first |= self._wish.schedule == "gpipe"
        if self._wish.stages_per_rank == 1:
            return ScheduleGPipe if forwards_first else Schedule1F1B
        return ScheduleLoopedBFS if forwards_first else ScheduleInterleaved1F1B

    def _arrive(self, tensor: Tensor) -> Tensor:
        forward = vars(self._model).get("forward")
        upcasts = isinstance(forward, MixedForward) and forward.upcasts and self._precision.dtype
        return (half_to_full(tensor) if upcasts else tensor).to(self._device)


def _to_send(forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Give outputs of a stage as one block of memory each: gloo sends no views."""
    return map_tensors(Tensor.contiguous, forward(*args, **kwargs))

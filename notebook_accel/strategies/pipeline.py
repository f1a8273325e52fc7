"""Pipeline parallelism: each rank runs one stage of the model, on one micro-batch after the other.

Every rank keeps the whole model, and computes, differentiates and updates only its stage: it is the
activations, gradients and optimizer states that are divided.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from notebook_accel.config.wishes import Pipeline
from notebook_accel.errors import ConfigError, RuntimeMisuse
from notebook_accel.events.lines import ours_between, persons_frame
from notebook_accel.events.pulse import BACKWARD, FORWARD
from notebook_accel.ranks import watch
from notebook_accel.ranks.collectives import map_tensors
from notebook_accel.ranks.hooks import Hook
from notebook_accel.ranks.world import World
from notebook_accel.strategies import sharding
from notebook_accel.strategies.base import Engine, Layout
from notebook_accel.strategies.compiled import uncompiled
from notebook_accel.strategies.layout import mesh_of, num_readers
from notebook_accel.strategies.precision import MixedForward, Precision, plain_forward
from notebook_accel.strategies.staged import Staged


class PipelineEngine(Engine):
    """Stages by torch's ``pipeline`` and its schedules; copies of the pipeline read other data."""

    wish: Pipeline

    def __init__(self, wish: Pipeline, world: World, precision: Precision) -> None:
        super().__init__(wish, world, precision)
        if precision.name == "fp16":
            raise ConfigError(
                "Pipeline() with mixed_precision='fp16'",
                "stages would have to agree on one loss scale, and they do not yet",
                "use mixed_precision='bf16'",
            )
        if world.size % wish.stages:
            raise ConfigError(
                f"Pipeline(stages={wish.stages}) in a world of {world.size} ranks",
                f"groups of {wish.stages} ranks do not fill it",
                f"launch a multiple of {wish.stages} processes, or ask for a divisor of "
                f"{world.size}",
            )
        mesh = mesh_of(world, world.size // wish.stages, pp=wish.stages)
        readers = tuple(rank // wish.stages for rank in range(world.size))
        # The loss is told to every rank, so that each owns a real one.
        self.layout = Layout(readers[world.rank], num_readers(mesh), readers=readers)
        self._group = mesh["pp"].get_group()
        self._copies = mesh["dp_replicate"].get_group() if self.layout.data_size > 1 else None
        self._models: dict[int, Staged] = {}
        self._pulse = watch.pulse()

    def mix(self, model: nn.Module) -> nn.Module:
        """Let ``model`` run in stages, and each in this engine's precision."""
        inner = plain_forward(uncompiled(model))
        if id(inner) not in self._models:
            if sharding.start_alike(inner, self.world) and self.world.rank == 0:
                print(
                    "note: the ranks built models of different weights; all start from rank 0's "
                    "(set_seed(...) before the model makes them alike)"
                )
            self._models[id(inner)] = Staged(
                inner, self.wish, self._group, precision=self.precision, device=self.world.device
            )
            inner.register_state_dict_pre_hook(Hook(self._refuse_old))  # type: ignore[no-untyped-call]
        inner.forward = StagedForward(inner.forward, self.precision, self)
        return model

    def describe(self, model: nn.Module) -> str:
        """Say what became of ``model``."""
        staged = self._staged(model)
        begins = ", ".join(staged.begins) or "one stage"
        copies = f", in {self.layout.data_size} copies" if self.layout.data_size > 1 else ""
        return f"{self.wish.stages} stages, beginning at {begins}{copies}"

    def place_for_evaluation(self, model: nn.Module, device_placement: bool = True) -> nn.Module:
        """Do what ``place`` does: an evaluation runs in stages too."""
        return self.place(model, device_placement)

    def _staged(self, model: nn.Module) -> Staged:
        found = self._models.get(id(uncompiled(model)))
        if found is None:
            raise RuntimeMisuse(
                f"{type(model).__name__} was not prepared by this accelerator",
                "only a prepared model is cut into stages",
                "write model = accelerator.prepare(model)",
            )
        return found

    # ── the loop ──────────────────────────────────────────────────────────────────────────────

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Refuse: a pipeline runs forward and backward together.

        Errors: RuntimeMisuse.
        """
        raise RuntimeMisuse(
            "accelerator.backward(loss) under strategy=Pipeline(...)",
            "no rank has the whole graph of a loss: forward and backward of micro-batches take "
            "turns over the ranks",
            "write loss = accelerator.forward_backward(model, (inputs, targets), loss_fn)",
        )

    def forward_backward(
        self, model: nn.Module, batch: Any, loss_fn: Callable[[Any, Any], Tensor], weight: float
    ) -> Tensor:
        """Run a batch through the stages and back; the loss is a mean over its rows.

        Ranks: all ranks call it, those of one reader with the same batch.
        """
        inputs, targets = batch
        staged = self._staged(model)
        with self._meeting(BACKWARD):
            loss = staged.train((inputs,), targets, loss_fn, weight)
            if staged.sync and self._copies is not None:
                average(staged.own_parameters(), self._copies)
        return loss

    def evaluate(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the stages forward; every rank of the reader gets the output."""
        with self._meeting(FORWARD):
            return self._staged(model).evaluate(args, kwargs)

    def set_sync(self, model: nn.Module, sync: bool) -> None:
        """Say whether the next backward through ``model`` averages gradients over its copies."""
        self._staged(model).sync = sync

    @contextmanager
    def _meeting(self, kind: int) -> Iterator[None]:
        """Note that this rank waits for others inside the block."""
        pulse = self._pulse
        if pulse is None:
            yield
            return
        pulse.enter(kind)
        pulse.quiet = True
        try:
            yield
        finally:
            pulse.quiet = False
        pulse.leave()

    # ── gradients ─────────────────────────────────────────────────────────────────────────────

    def grad_norm(self, parameters: Iterable[Tensor], norm_type: float = 2.0) -> Tensor:
        """Measure the norm of all gradients together, those of other stages too.

        Ranks: all ranks call it.
        """
        own = super().grad_norm(parameters, norm_type).to(self.world.device)
        norms = [torch.zeros_like(own) for _ in range(self.wish.stages)]
        watch.all_gather(norms, own, group=self._group)
        return torch.nn.utils.get_total_norm(norms, norm_type)

    def clip_grad_norm(
        self, parameters: Iterable[Tensor], max_norm: float, norm_type: float = 2.0
    ) -> Tensor:
        """Scale gradients so that their norm is at most ``max_norm``; give the norm before.

        Ranks: all ranks call it.
        """
        listed = list(parameters)
        norm = self.grad_norm(listed, norm_type)
        own = [one for one in listed if one.grad is not None]
        torch.nn.utils.clip_grads_with_norm_(own, max_norm, norm)
        return norm

    # ── states ────────────────────────────────────────────────────────────────────────────────

    @property
    def shares_states(self) -> bool:
        """Whether a rank alone does not know the whole state: always."""
        return True

    def state_dict(self, model: nn.Module) -> dict[str, Any]:
        """Give the model's whole state; every rank's model is then as its stages made it.

        Ranks: all ranks call it.
        """
        self._staged(model).refresh()
        return self.unwrap(model).state_dict()

    def _refuse_old(self, model: nn.Module, prefix: str, keep_vars: bool) -> None:
        """Refuse the person a state whose half is old; called before ``model.state_dict()``."""
        forward = vars(model).get("forward")
        mine = isinstance(forward, StagedForward) and forward.engine is self
        if not mine or not self._staged(model).is_old:
            return
        frame = sys._getframe(2)  # beyond this and the hook
        person = persons_frame(frame)
        if person is not None and not ours_between(frame, person):
            raise RuntimeMisuse(
                "model.state_dict() of a model in stages",
                "this rank has trained only its own stage; the other parameters are old",
                "write accelerator.get_state_dict(model), on all ranks",
            )

    def kept_optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Give the optimizer's whole state, each parameter's from the rank of its stage.

        Ranks: all ranks call it.
        """
        own = optimizer.state_dict()
        stage_of: dict[int, int] = {}
        for staged in self._models.values():
            stage_of.update(staged.stages_by_id())
        listed = [one for group in optimizer.param_groups for one in group["params"]]
        stage = dist.get_rank(self._group)
        mine = {
            index: state
            for index, state in own["state"].items()
            if stage_of.get(id(listed[index]), stage) == stage
        }
        every: list[Any] = [None] * self.wish.stages
        watch.all_gather_object(every, map_tensors(Tensor.cpu, mine), group=self._group)
        merged: dict[int, Any] = {}
        for states in every:
            merged.update(states)
        return {**own, "state": {index: merged[index] for index in sorted(merged)}}


class StagedForward(MixedForward):
    """A prepared model's forward: the stages', where nothing is trained.

    A deep copy (an average of weights) has the plain forward again, and can be trained nowhere.
    """

    def __init__(self, forward: Any, precision: Precision, engine: PipelineEngine) -> None:
        super().__init__(forward, precision)
        self.engine = engine

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the stages forward.

        Errors: RuntimeMisuse where gradients are asked for.
        """
        model = self.forward.__self__
        if model.training and torch.is_grad_enabled():
            raise RuntimeMisuse(
                "a model under strategy=Pipeline(...) is called to be trained",
                "its output would have no gradients: forward and backward of micro-batches take "
                "turns over the ranks",
                "write loss = accelerator.forward_backward(model, (inputs, targets), loss_fn); to "
                "evaluate, call it after model.eval() or under torch.no_grad()",
            )
        return self.engine.evaluate(model, args, kwargs)

    def __reduce__(self) -> Any:
        raise RuntimeMisuse(
            "a model in stages was returned from a rank, or pickled",
            "this rank has trained only its own stage; the other parameters are old",
            "return accelerator.get_state_dict(model), called on all ranks",
        )


def average(parameters: Iterable[Tensor], group: Any) -> None:
    """Average the gradients of ``parameters`` over ``group``, which has a copy of each.

    Ranks: all ranks of the group call it.
    """
    size = dist.get_world_size(group)
    for one in parameters:
        if one.grad is not None:
            one.grad.div_(size)
            dist.all_reduce(one.grad, group=group)

"""Pipeline parallelism: each rank runs its stages of the model, on one micro-batch after the other.

A rank holds the parameters of its own stages, from the first batch on, which shows what they are.
Several ranks may share a stage: as copies, in parts, or with its layers divided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from notebook_accel.config.wishes import Pipeline
from notebook_accel.errors import ConfigError, RuntimeMisuse
from notebook_accel.events.pulse import BACKWARD, FORWARD
from notebook_accel.ranks import watch
from notebook_accel.ranks.collectives import map_tensors
from notebook_accel.ranks.shards import wholes
from notebook_accel.ranks.world import World
from notebook_accel.strategies import sharding, tensor
from notebook_accel.strategies.base import Layout, Parts, move_state, parameters_of
from notebook_accel.strategies.batchnorm import refuse_to_meet
from notebook_accel.strategies.calls import called_with
from notebook_accel.strategies.compiled import uncompiled
from notebook_accel.strategies.holdings import Holdings, weakly
from notebook_accel.strategies.homecoming import HOME
from notebook_accel.strategies.layout import mesh_of_stages
from notebook_accel.strategies.parts import PartsEngine
from notebook_accel.strategies.precision import Precision, plain_forward
from notebook_accel.strategies.staged import Staged
from notebook_accel.strategies.staged_model import StagedForward, refuse_of_another, watch_states


class PipelineEngine(PartsEngine):
    """Stages by torch's ``pipeline`` and its schedules; copies of the pipeline read other data."""

    wish: Pipeline
    overflows_apart = True

    def __init__(self, wish: Pipeline, world: World, precision: Precision) -> None:
        super().__init__(wish, world, precision)
        num_dividers = 1 if wish.tensor is None else wish.tensor.size  # of each layer
        together = wish.num_ranks * num_dividers
        num_readers = world.size // together
        copies = _num_copies(wish, num_readers, world)
        mesh = mesh_of_stages(world, copies, wish.num_ranks, num_dividers)
        names = mesh.mesh_dim_names or ()
        readers = tuple(rank // together for rank in range(world.size))
        place = dict(zip(names, mesh.get_coordinate() or (), strict=True))
        # The loss is told to every rank, so that each owns a real one.
        self.layout = Layout(
            readers[world.rank],
            num_readers,
            readers=readers,
            shard_rank=place.get("dp_shard", 0),
            tensor_rank=place.get("tp", 0),
            pipeline_rank=place["pp"],
        )
        self._mesh = mesh
        self._group = mesh["pp"].get_group()
        self._shared = mesh[tuple(names[1:])] if len(names) > 1 else None
        self._models: dict[int, Staged] = {}

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh of ranks: stages first, then those that share one."""
        return self._mesh

    def release(self) -> None:
        """Let go of all models and optimizers."""
        super().release()
        self._models.clear()

    # ── wrapping ──────────────────────────────────────────────────────────────────────────────

    def wrap(self, parts: Parts, device_placement: bool = True) -> Parts:
        """Let models run in stages, and optimizers train what this rank has of them.

        Ranks: all ranks call it with the same parts; models start as rank 0 has them.
        """
        for optimizer in parts.optimizers:
            if optimizer not in self._optimizers:
                self._optimizers.append(optimizer)
                optimizer.register_load_state_dict_pre_hook(self._own_states)
        wrapped = super().wrap(parts, device_placement)
        for optimizer in self._optimizers:
            self._follow(optimizer)
        return wrapped

    def place(self, model: nn.Module, device_placement: bool = True) -> nn.Module:
        """Let ``model`` run in stages, which come to the device with the first batch."""
        return self.mix(model)

    def mix(self, model: nn.Module) -> nn.Module:
        """Let ``model`` run in stages, and each in this engine's precision."""
        inner = uncompiled(model)
        refuse_of_another(inner, self)
        plain_forward(inner)
        if id(inner) not in self._models:
            self._models[id(inner)] = self._cut(inner)
            HOME.expect(inner, weakly(self._models[id(inner)].holdings.make_whole))
            watch_states(inner, self)
        inner.forward = StagedForward(inner.forward, self.precision, self)
        return model

    def compile(self, model: nn.Module, regional: bool, arguments: Mapping[str, Any]) -> None:
        """Compile each stage of ``model`` by itself, when the first batch has shown what it is."""
        self._staged(model).compiler = dict(arguments)

    def _cut(self, model: nn.Module) -> Staged:
        wish, layers = self.wish, []
        refuse_to_meet(model)
        if any(one.is_meta for one in model.parameters()) and not self.world.is_fake:
            raise ConfigError(
                f"{type(model).__name__} is on the meta device, under Pipeline()",
                "each rank takes its stages out of a whole model, in the memory of the CPU",
                "build it with its weights on every rank, or use strategy=FSDP("
                "cpu_ram_efficient_loading=True), where only rank 0 needs them",
            )
        if wish.tensor is not None:
            assert self._shared is not None
            layers = tensor.divided_layers(model, wish.tensor, self._shared["tp"])
        staged = Staged(
            model,
            wish,
            self._group,
            Holdings(model, self._group, self._shared, layers, self.world.device),
            layers,
            self._settle,
            precision=self.precision,
            device=self.world.device,
        )
        sharding.start_alike(model, self.world)
        return staged

    def _settle(self, moved: sharding.Moved) -> None:
        self._moved.update(moved)
        for optimizer in self._optimizers:
            self._follow(optimizer)
            move_state(optimizer, self.world.device)

    def _follow(self, optimizer: Optimizer) -> None:
        """Let ``optimizer`` train what this rank has, and know nothing of what others have."""
        sharding.follow(optimizer, self._moved)
        others = self._others()
        for parameter in [one for one in optimizer.state if id(one) in others]:
            del optimizer.state[parameter]
            parameter.grad = None

    def describe(self, model: nn.Module) -> str:
        """Say what became of ``model``."""
        wish, layout = self.wish, self.layout
        begins = ", ".join(self._staged(model).begins) or "one stage"
        told = f"{wish.stages} stages, beginning at {begins}"
        if wish.stages_per_rank > 1:
            told += f", {wish.stages_per_rank} on each rank"
        if wish.tensor is not None:
            told += f", layers divided over {wish.tensor.size} ranks"
        if wish.data is not None and layout.data_size > 1:
            copies = _num_copies(wish, layout.data_size, self.world)
            return f"{told}, each sharded over {layout.data_size // copies} ranks"
        return f"{told}, in {layout.data_size} copies" if layout.data_size > 1 else told

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
        staged, scaler = self._staged(model), self.precision.scaler
        staged.is_apart = self._is_apart(model)
        factor: float | Tensor = weight
        if scaler is not None:  # all ranks scale alike, and each unscales its own stages
            factor = scaler.scale(torch.full((), weight, device=self.world.device))
        with watch.meeting(self._pulse, BACKWARD):
            return staged.train(*called_with(inputs), targets, loss_fn, factor)

    def evaluate(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the stages forward; every rank of the reader gets the output.

        Errors: RuntimeMisuse where other ranks are only played: their stages compute nothing.
        """
        if self.world.is_fake:
            raise RuntimeMisuse(
                "a model in stages was called under device='fake'",
                "the last stage makes its output, and this rank is the only one that computes",
                "leave evaluations out of a fake run",
            )
        with watch.meeting(self._pulse, FORWARD):
            return self._staged(model).evaluate(args, kwargs)

    def set_sync(self, model: nn.Module, sync: bool) -> None:
        """Say whether the next backward through ``model`` averages gradients over its copies."""
        if not self._is_apart(model):
            self._staged(model).sync = sync

    def syncs(self, model: nn.Module) -> bool:
        """Whether the next backward through ``model`` averages gradients over its copies."""
        return self._staged(model).sync

    # ── gradients ─────────────────────────────────────────────────────────────────────────────

    def forget_pending(self, model: nn.Module) -> None:
        """Drop what micro-batches of a window that will never be whole have left."""
        self._staged(model).holdings.forget_pending()

    def has_whole_gradients(self, parameters: Sequence[Tensor]) -> bool:
        """They are those of this rank's stages: no."""
        return False

    def grad_norm(self, parameters: Iterable[Tensor], norm_type: float = 2.0) -> Tensor:
        """Measure the norm of all gradients together, those of other stages too.

        Ranks: all ranks call it.
        """
        counted = list(parameters)
        for staged in self._models.values():
            counted = staged.holdings.counted(counted)
        own = super().grad_norm(counted, norm_type).to(self.world.device)
        norms = [torch.zeros_like(own) for _ in range(self.wish.num_ranks)]
        watch.all_gather(norms, own, group=self._group)
        return torch.nn.utils.get_total_norm(norms, norm_type)

    # ── states ────────────────────────────────────────────────────────────────────────────────

    def state_dict(self, model: nn.Module) -> dict[str, Any]:
        """Give the model's whole state on the first rank of each machine, nothing on others.

        Ranks: all ranks call it.
        """
        holdings = self._staged(model).holdings
        if holdings.is_settled:
            return holdings.state(self._keeps)
        return self.unwrap(model).state_dict() if self._keeps else {}

    def foreign(self, model: nn.Module) -> dict[str, Tensor]:
        """Give what stands in ``model`` for parameters that other ranks have, by name."""
        return self._staged(model).holdings.foreign()

    def is_divided(self, model: nn.Module) -> bool:
        """Whether this rank has let go of what other ranks have of ``model``."""
        return self._staged(model).holdings.is_settled

    def _state_of(self, optimizer: Optimizer, keep: bool) -> dict[str, Any]:
        """Bring each parameter's state from the rank of its stage."""
        own = optimizer.state_dict()
        owners: dict[int, int] = {}
        for staged in self._models.values():
            owners.update(staged.holdings.owners())
        merged: dict[int, Any] = {}
        for index, parameter in enumerate(parameters_of(optimizer)):
            owner = owners.get(id(parameter))
            told = [None]
            if owner in (None, self.layout.pipeline_rank):
                told = [wholes(map_tensors(Tensor.cpu, own["state"].get(index)), keep=True)]
            if owner is not None:
                source = dist.get_global_rank(self._group, owner)
                watch.broadcast_object_list(told, source, group=self._group)
            if told[0] is not None and keep:
                merged[index] = told[0]
        return {**own, "state": merged}

    def _own_states(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        """Leave out what other ranks have, of a state that ``optimizer`` is to load."""
        others, listed = self._others(), parameters_of(optimizer)
        own = {
            index: one
            for index, one in state["state"].items()
            if index >= len(listed) or id(listed[index]) not in others
        }
        return {**state, "state": own}

    def _others(self) -> set[int]:
        """Give the ids of parameters that other ranks have."""
        return set[int]().union(*(one.holdings.others() for one in self._models.values()))


def _num_copies(wish: Pipeline, num_readers: int, world: World) -> int:
    """How many of the readers of data have the same part of a stage."""
    if wish.data is None:
        return num_readers
    return min(num_readers, wish.data.num_copies(world.placement))

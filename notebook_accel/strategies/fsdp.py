"""Every rank holds 1/N of the model, its gradients and its optimizer's state (FSDP2)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
)
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from notebook_accel.config.kinds import DistributedType
from notebook_accel.config.wishes import FSDP
from notebook_accel.config.words import counted
from notebook_accel.errors import ConfigError
from notebook_accel.events import context
from notebook_accel.events.pulse import BACKWARD
from notebook_accel.ranks import watch
from notebook_accel.ranks.shards import is_sharded, wholes
from notebook_accel.ranks.world import World
from notebook_accel.strategies import lean, sharding
from notebook_accel.strategies.base import Layout, Parts
from notebook_accel.strategies.batchnorm import let_batch_norms_meet
from notebook_accel.strategies.blocks import can_be_cut, find_blocks, modules_named
from notebook_accel.strategies.buffers import follow_first
from notebook_accel.strategies.compiled import refuse_whole_graph, uncompiled
from notebook_accel.strategies.fp8 import share_scales
from notebook_accel.strategies.homecoming import HOME
from notebook_accel.strategies.layout import data_axes, mesh_of
from notebook_accel.strategies.parts import PartsEngine
from notebook_accel.strategies.precision import Precision

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class FSDPEngine(PartsEngine):
    """Fully sharded data parallelism by torch's ``fully_shard``, over gloo or nccl."""

    kind = DistributedType.FSDP
    wish: FSDP

    def __init__(self, wish: FSDP, world: World, precision: Precision) -> None:
        super().__init__(wish, world, precision)
        self.layout = Layout(world.rank, world.size)
        self._mesh = self._lay_out()
        self._saves_parts = wish.state_dict_type == "sharded_state_dict"
        self._parts: dict[int, int] = {}  # id of a model -> how many parts it was cut into
        self._syncs: dict[int, bool] = {}

    def _lay_out(self) -> DeviceMesh:
        """Give the mesh whose last dimension shards, and one before it holds copies."""
        return data_axes(mesh_of(self.world, self.wish.num_copies(self.world.placement)))

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh of ranks: copies, and the shards of each."""
        return self._mesh

    def _readers(self) -> Any:
        """Give the group of ranks that read different data and compute one layer; None is all."""
        if self._mesh.size() == self.world.size:
            return None
        if self._mesh.ndim == 1:
            return self._mesh.get_group()
        return self._mesh._flatten("readers").get_group()  # torch has no public name for it

    # ── wrapping ──────────────────────────────────────────────────────────────────────────────

    def wrap(self, parts: Parts, device_placement: bool = True) -> Parts:
        """Cut models up, and let optimizers train the parts, in whatever order both come.

        Ranks: all ranks call it with the same parts; models start as rank 0 has them.
        """
        self._optimizers += parts.optimizers
        wrapped = super().wrap(parts, device_placement)
        for optimizer in self._optimizers:
            sharding.follow(optimizer, self._moved)
        return wrapped

    def place(self, model: nn.Module, device_placement: bool = True) -> nn.Module:
        """Cut ``model`` up over the ranks; its parts compute in this engine's precision."""
        inner = uncompiled(model)
        if not any(map(is_sharded, inner.parameters())):  # else only the precision is ours
            self._shard(inner)
            if self._pulse is not None:
                for part in inner.modules():
                    if isinstance(part, FSDPModule):
                        watch.watch_gathering(part, self._pulse)
            if self._mesh.size() > 1:
                syncs = partial(self.syncs, inner)
                follow_first(inner, self._readers(), self.world.device, syncs, self._pulse)
        return self.mix(model)

    def _shard(self, model: nn.Module) -> None:
        wish = self.wish
        blocks = find_blocks(
            model,
            wish.auto_wrap_policy,
            wish.transformer_cls_names_to_wrap,
            wish.min_num_params,
        )
        if self._has_unfound_parts(model, len(blocks) + 1) and self.world.rank == 0:
            print(
                f"note: no blocks were found in {type(model).__name__}: FSDP gathers all of it at "
                "once (FSDP(auto_wrap_policy=...) says what its parts are)"
            )
        kept = _kept_whole(model, wish.ignored_modules)
        let_batch_norms_meet(model, self.world.device, self._readers())
        with sharding.tracked(model) as moved:
            given = lean.lift(model, self.world) if wish.cpu_ram_efficient_loading else None
            if given is None:
                sharding.start_alike(model, self.world)
            if self.precision.eight_bits is not None:
                # Offloaded shards cannot agree on scales: ranks of GPUs do not meet on the CPU.
                gathers = not (wish.cpu_offload and self.world.device.type != "cpu")
                self.precision.eight_bits.convert(model, gathers)
            if wish.activation_checkpointing:
                anyway = blocks or find_blocks(model, "auto", wish.transformer_cls_names_to_wrap)
                recomputed = sharding.recompute(model, anyway)
                blocks = recomputed if blocks else []
            self._divide_layers(model)
            if self._cuts_parameters():
                sharding.shard(
                    model,
                    self._mesh,
                    blocks,
                    reshard_after_forward=wish.reshard_after_forward,
                    numbers=self._numbers(),
                    offload=self._offload(),
                    ignored=[one for module in kept for one in module.parameters()],
                )
                share_scales(model)
            else:
                model.to(self.world.device)
            if given is not None:
                lean.pour(model, given, self.world, on_cpu=wish.cpu_offload)
        for module in kept:
            module.to(self.world.device)
        HOME.expect(model)
        self._moved.update(moved)
        self._parts[id(model)] = len(blocks) + 1

    def _has_unfound_parts(self, model: nn.Module, num_parts: int) -> bool:
        """Whether the model is one part only because no blocks were found in it."""
        is_one = num_parts == 1 and self.wish.auto_wrap_policy == "auto"
        return is_one and self._cuts_parameters() and can_be_cut(model)

    def _divide_layers(self, model: nn.Module) -> None:
        """Cut layers up before parameters are; here they stay whole."""

    def _cuts_parameters(self) -> bool:
        """Whether parameters are cut up after layers: always, if there is nothing else."""
        return True

    def _numbers(self) -> MixedPrecisionPolicy:
        wish, compute = self.wish, self.precision.dtype
        reduce = None if compute is None else torch.float32
        return MixedPrecisionPolicy(
            param_dtype=_DTYPES.get(wish.param_dtype or "", compute),
            reduce_dtype=_DTYPES.get(wish.reduce_dtype or "", reduce),
            output_dtype=_DTYPES.get(wish.output_dtype or ""),
        )

    def _offload(self) -> OffloadPolicy:
        if not self.wish.cpu_offload:
            return OffloadPolicy()
        return CPUOffloadPolicy(pin_memory=self.world.device.type == "cuda")

    def compile(self, model: nn.Module, regional: bool, arguments: Mapping[str, Any]) -> None:
        """Compile a model that is cut up; its parts are gathered outside of graphs.

        Errors: ConfigError for one graph of the whole.
        """
        refuse_whole_graph(uncompiled(model), regional, arguments)
        super().compile(model, regional, arguments)

    def describe(self, model: nn.Module) -> str:
        """Say what became of ``model``."""
        num_parts, shards = self._parts.get(id(uncompiled(model)), 1), self._mesh.size(-1)
        num = self._mesh.size() // shards
        copies = f" in each of {num} copies" if num > 1 else ""
        if self._has_unfound_parts(uncompiled(model), num_parts):
            unfound = "no blocks were found, auto_wrap_policy says what the parts are"
            return f"1 part ({unfound}), sharded over {shards} ranks{copies}"
        parts = counted(num_parts, "part")
        return f"{parts}, each sharded over {shards} ranks{copies}"

    # ── gradients ─────────────────────────────────────────────────────────────────────────────

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Add the gradients of ``loss``; ranks wait for each other for each part."""
        if self._pulse is None or not self._parts:
            super().backward(loss, **kwargs)
            return
        self._pulse.enter(BACKWARD)
        super().backward(loss, **kwargs)
        self._pulse.leave()

    def set_sync(self, model: nn.Module, sync: bool) -> None:
        """Say whether the next backward through ``model`` averages gradients over ranks."""
        inner = uncompiled(model)
        if not isinstance(inner, FSDPModule) or self._is_apart(inner):
            return
        if self.syncs(inner) != sync:
            inner.set_requires_gradient_sync(sync)
            self._syncs[id(inner)] = sync

    def syncs(self, model: nn.Module) -> bool:
        """Whether the next backward through ``model`` averages gradients over ranks."""
        return self._syncs.get(id(uncompiled(model)), True)

    def forget_pending(self, model: nn.Module) -> None:
        """Drop what micro-batches of a window that will never be whole have left."""
        sharding.forget_pending(uncompiled(model))

    # ── states ────────────────────────────────────────────────────────────────────────────────

    def kept_state(self, model: nn.Module) -> dict[str, Any]:
        """Give the model's state as a checkpoint keeps it: whole, or this rank's parts of it.

        Ranks: all ranks call it.
        """
        return self.unwrap(model).state_dict() if self._saves_parts else self.state_dict(model)

    def kept_optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Give the optimizer's state as a checkpoint keeps it: whole, or this rank's parts.

        Ranks: all ranks call it.
        """
        state = optimizer.state_dict()
        if self._saves_parts:
            return state
        whole: dict[str, Any] = wholes(state, self._keeps)
        return whole

    def state_dict(self, model: nn.Module) -> dict[str, Any]:
        """Give the model's whole state on the first rank of each machine, nothing on others.

        Ranks: all ranks call it.
        """
        state: dict[str, Any] = wholes(self.unwrap(model).state_dict(), self._keeps)
        return state if self._keeps else {}


def _kept_whole(model: nn.Module, wanted: Any) -> list[nn.Module]:
    """List the modules that are not sharded.

    Errors: ConfigError if anything in them is trained.
    """
    modules = [] if wanted is None else modules_named(model, wanted, "ignored_modules")
    if any(one.requires_grad for module in modules for one in module.parameters()):
        raise ConfigError(
            "FSDP(ignored_modules=...) has parameters that are trained",
            "nobody averages the gradients of what is not sharded: ranks would drift apart",
            "freeze them (requires_grad_(False)), or do not ignore them",
        )
    return modules


# What travels back to the kernel must be whole.
context.encoders[DTensor] = HOME.instead_of

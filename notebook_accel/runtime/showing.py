"""The Accelerator's names for what it holds: states, lists of prepared objects, kinds, models."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import nn

from notebook_accel.config.dynamo import TorchDynamoPlugin
from notebook_accel.config.kinds import DistributedType, FP8BackendType
from notebook_accel.errors import NotHere
from notebook_accel.ranks.world import World
from notebook_accel.runtime.clock import Clock
from notebook_accel.runtime.faces import AcceleratorState, kind_of_ranks
from notebook_accel.runtime.gradient_state import GradientState
from notebook_accel.runtime.optimizer import PreparedOptimizer
from notebook_accel.runtime.prepare import Wardrobe
from notebook_accel.runtime.sharing import Sharing
from notebook_accel.strategies.base import Engine
from notebook_accel.strategies.compiled import uncompiled
from notebook_accel.strategies.ddp import sync_next_backward

Prepared = TypeVar("Prepared")


class Showing(Sharing):
    """The part of an Accelerator that shows what is in it."""

    state: AcceleratorState
    gradient_state: GradientState
    _world: World
    _clock: Clock
    _engine: Engine
    _wardrobe: Wardrobe
    _dynamo: TorchDynamoPlugin
    _registered: list[tuple[Any, bool]]

    def __deepcopy__(self, memo: Any) -> Showing:
        return self  # an object that keeps its accelerator may be copied: there is one of it

    def _compile(self, one: Prepared) -> Prepared:
        """Compile a prepared model in place, if that was asked for."""
        if self._dynamo.compiles and isinstance(one, nn.Module):
            regional = bool(self._dynamo.use_regional_compilation)
            self._engine.compile(one, regional, self._dynamo.to_kwargs())
        return one

    @property
    def distributed_type(self) -> DistributedType:
        """What kind of ranks there are, or how models lie across them."""
        return self._plugins.kind or kind_of_ranks(self._world)

    @property
    def use_distributed(self) -> bool:
        """Whether there are several ranks."""
        return self._world.size > 1

    @property
    def multi_device(self) -> bool:
        """Whether there are several ranks, each on an accelerator of its own."""
        return self._world.size > 1 and self._world.device.type != "cpu"

    @property
    def step(self) -> int:
        """How many optimizer steps were made."""
        return self._clock.step

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether the last step of an optimizer was left out, its gradients having overflowed."""
        return any(one.step_was_skipped for one in self._wardrobe.optimizers)

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """The loss scaler of fp16; None for other precisions."""
        return self._engine.precision.scaler

    @property
    def native_amp(self) -> bool:
        """Whether forward passes run in mixed precision."""
        return self._engine.precision.dtype is not None

    @property
    def _models(self) -> list[nn.Module]:
        return [self._engine.unwrap(model) for model in self._wardrobe.models]

    @property
    def _optimizers(self) -> list[PreparedOptimizer]:
        return self._wardrobe.optimizers

    @property
    def _schedulers(self) -> list[Any]:
        return self._wardrobe.schedulers

    @property
    def _dataloaders(self) -> list[Any]:
        return self._wardrobe.loaders

    @property
    def _custom_objects(self) -> list[Any]:
        return [one for one, _ in self._registered]

    @property
    def torch_device_mesh(self) -> Any:
        """The mesh of ranks, where they are laid out along named axes; else None."""
        return self._engine.mesh

    @property
    def fp8_backend(self) -> FP8BackendType | None:
        """Which library computes in eight bits; None in other precisions."""
        return FP8BackendType.AO if self._engine.precision.eight_bits is not None else None

    @property
    def is_composable_parallelism_enabled(self) -> bool:
        """Whether ranks are laid out over several dimensions."""
        mesh = self._engine.mesh
        return mesh is not None and mesh.ndim > 1

    @property
    def tensor_parallel_rank(self) -> int:
        """This rank's place in its group of tensor parallelism."""
        return self._engine.layout.tensor_rank

    @property
    def data_parallel_rank(self) -> int:
        """This rank's place among the readers of data."""
        return self._engine.layout.data_rank

    @property
    def data_parallel_shard_rank(self) -> int:
        """This rank's place in its group of sharded data parallelism."""
        return self._engine.layout.shard_rank

    def unwrap_model(
        self, model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
    ) -> nn.Module:
        """Give the person's own module back.

        Without ``keep_fp32_wrapper`` its forward is as it was made; without ``keep_torch_compile``
        it is the module under ``torch.compile``.
        """
        own = self._engine.unwrap(model, keep_fp32_wrapper)
        return own if keep_torch_compile else uncompiled(own)

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Take the loss scale of fp16 off the gradients of ``optimizer``, or of all.

        Inside an open window, and in other precisions, there is nothing to do.
        """
        if not self._clock.sync or not self._engine.scales:
            return
        wanted = self._wardrobe.optimizers
        if optimizer is not None:
            given = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
            wanted = [one for one in wanted if any(one is it or one.inner is it for it in given)]
        for one in wanted:
            one.settle()

    # Average gradients in a backward inside the block, although its forward was in ``no_sync``.
    trigger_sync_in_backward = staticmethod(sync_next_backward)

    def verify_device_map(self, model: nn.Module) -> bool:
        """Tell whether a part of ``model`` was spread over several devices."""
        maps = [getattr(part, "hf_device_map", None) or {} for part in model.modules()]
        return any(len(one) > 1 for one in maps)

    def maybe_context_parallel(
        self, buffers: Any = None, buffer_seq_dims: Any = None, no_restore_buffers: Any = None
    ) -> Any:
        """Cut sequences in place inside the block, under ``ParallelismConfig(cp_size=...)``.

        Each rank has its part of ``buffers`` along ``buffer_seq_dims``, and attention of prepared
        models sees the whole; after the block they are whole again, but for ``no_restore_buffers``.
        Elsewhere nothing happens: there is nothing to cut, or the prepared loader has cut it.

        Ranks: all ranks enter it, those of a sequence with the same tensors.
        """
        return self._engine.sequences_cut(buffers, buffer_seq_dims, no_restore_buffers)

    def deepspeed_ulysses_dl_adapter(self, dl: Any, model: Any) -> Any:
        """Give a prepared loader back: where sequences are divided, it divides them."""
        return dl

    @property
    def pipeline_parallel_rank(self) -> int:
        """This rank's place in its pipeline."""
        return self._engine.layout.pipeline_rank

    @property
    def context_parallel_rank(self) -> int:
        """Which part of sequences this rank has."""
        return self._engine.layout.sequence_rank

    def lomo_backward(self, loss: Any, learning_rate: float) -> None:
        """Step inside backward with a LOMO optimizer.

        Errors: NotHere.
        """
        raise NotHere(
            "LOMO optimizers are not here",
            "they step inside backward, and nothing of this package does",
            "use AdamW, with gradient checkpointing if memory is short",
        )

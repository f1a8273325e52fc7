"""Sequences cut up over neighboring ranks, which compute them together.

All ranks share the parameters as DDP, FSDP or tensor parallelism has it, and average gradients over
the parts of sequences as over different data; what is added here is who reads what, and attention.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from notebook_accel.config.deepspeed import DeepSpeed
from notebook_accel.config.sequence import SequenceParallel
from notebook_accel.config.wishes import DDP, FSDP, TensorParallel
from notebook_accel.ranks.world import World
from notebook_accel.strategies import sequence_parts as parts
from notebook_accel.strategies.base import Engine, Parts
from notebook_accel.strategies.compiled import uncompiled
from notebook_accel.strategies.ddp import DDPEngine
from notebook_accel.strategies.fsdp import FSDPEngine
from notebook_accel.strategies.layout import sequence_mesh
from notebook_accel.strategies.precision import Precision
from notebook_accel.strategies.sequence_forward import (
    SequenceForward,
    Sharing,
    check_model,
    takes_shifted_labels,
)
from notebook_accel.strategies.tensor import TensorEngine


class SequenceEngine(Engine):
    """What dividing sequences adds to an engine that shares parameters over all ranks."""

    def __init__(self, wish: SequenceParallel, world: World, precision: Precision) -> None:
        tensor = wish.data.size if isinstance(wish.data, TensorParallel) else 1
        # torch warns, at each pass, of views that nobody changes in place.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
        super().__init__(wish.data, world, precision)
        self._sequence = wish
        self._together = wish.size * tensor  # so many ranks divide heads
        self._axes = sequence_mesh(world, wish.size, tensor, wish.axis, _num_copies(wish, world))
        self._group = parts.Group.of(self._axes[wish.axis].get_group(), world.wire)
        readers = tuple(rank // self._together for rank in range(world.size))
        self.layout = replace(
            self.layout,
            data_rank=readers[world.rank],
            data_size=world.size // self._together,
            readers=readers,
            sequence_rank=self._group.rank,
            num_averaged=world.size // tensor,
        )
        self._cutters: list[parts.Cutter] = []
        self._shifts = False  # whether models may be given shifted labels
        self._newest: parts.Cutter | None = None
        self._cut_length: int | None = None  # of parts, inside ``sequences_cut``
        checks = wish.check and not world.is_fake  # ranks that are played compute nothing
        self._sharing = Sharing(self._group, wish.exchange, checks, self._lengths)

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh of ranks, its axes named as ParallelismConfig names them."""
        return self._axes

    # ── models ────────────────────────────────────────────────────────────────────────────────

    def wrap(self, wanted: Parts, device_placement: bool = True) -> Parts:
        """Make models, optimizers and schedulers ready to train together."""
        for model in wanted.models:
            self._check(model)
        return super().wrap(wanted, device_placement)

    def place_for_evaluation(self, model: nn.Module, device_placement: bool = True) -> nn.Module:
        """Do what ``place`` does, less what only training needs."""
        self._check(model)
        return super().place_for_evaluation(model, device_placement)

    def mix(self, model: nn.Module) -> nn.Module:
        """Let ``model``'s forward take parts of sequences, in this engine's precision."""
        model = super().mix(model)
        inner = uncompiled(model)
        inner.forward = SequenceForward(inner.forward, self.precision, self._sharing)
        self._shifts = self._shifts or takes_shifted_labels(inner)
        return model

    def describe(self, model: nn.Module) -> str:
        """Say what became of ``model``."""
        how = {"heads": "each computes some heads", "keys": "each gets all keys and values"}
        inner = super().describe(model)
        return (
            f"sequences divided over {self._group.size} ranks ({how[self._sequence.exchange]})"
            f"{'; ' if inner else ''}{inner}"
        )

    def _check(self, model: nn.Module) -> None:
        check_model(uncompiled(model), self._together, self._sequence.exchange)

    # ── batches ───────────────────────────────────────────────────────────────────────────────

    def cutter(self) -> Callable[[Any], Any] | None:
        """Make what gives this rank's part of each batch of one loader."""
        wish = self._sequence
        if wish.cut == "context":
            return None
        compares = not self.world.is_fake
        made = parts.Cutter(self._group, wish.pad, wish.length, lambda: self._shifts, compares)
        self._cutters.append(made)

        def cut(batch: Any) -> Any:
            self._newest = made
            return made(batch)

        return cut

    def joined(self, tree: Any) -> Any:
        """Put together what the ranks of a sequence have of the same samples.

        Ranks: all ranks of the sequence call it.
        """
        if self._cut_length is not None:
            return parts.joined(tree, self._group, self._cut_length, -1)
        if self._newest is None or self._sequence.cut == "context":
            return tree
        return parts.joined(tree, self._group, self._newest.length, self._newest.rows)

    @contextmanager
    def sequences_cut(self, buffers: Any, dims: Any, kept_cut: Any) -> Iterator[None]:
        """Cut tensors in place inside the block, where the wish leaves batches whole.

        Ranks: all ranks of a sequence enter it with the same tensors.
        """
        if self._sequence.cut != "context" or buffers is None:
            yield
            return
        with parts.cut_buffers(buffers, dims or (), kept_cut or (), self._group) as length:
            self._cut_length = length
            try:
                yield
            finally:
                self._cut_length = None

    def _lengths(self) -> set[int] | None:
        """How long parts are now; None where sequences are whole."""
        if self._sequence.cut == "context":
            return None if self._cut_length is None else {self._cut_length}
        return {one.length for one in self._cutters if one.length}

    # ── gradients ─────────────────────────────────────────────────────────────────────────────

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Add the gradients of ``loss``; what is computed again attends as it did before."""
        with self._sharing.attending():
            super().backward(loss, **kwargs)


class SequenceDDP(SequenceEngine, DDPEngine):
    """Parts of sequences, and a whole copy of the model on every rank."""


class SequenceFSDP(SequenceEngine, FSDPEngine):
    """Parts of sequences, and shards of the model."""


class SequenceTensor(SequenceEngine, TensorEngine):
    """Parts of sequences, and layers divided over ranks."""


def sequence_engine(wish: SequenceParallel, world: World, precision: Precision) -> Engine:
    """Make the engine for ``wish`` in a world of several ranks."""
    if isinstance(wish.data, DeepSpeed):
        from notebook_accel.strategies.sequence_zero import SequenceZero  # imports DeepSpeed

        return SequenceZero(wish, world, precision)
    kinds: dict[type, type[SequenceEngine]] = {
        DDP: SequenceDDP,
        FSDP: SequenceFSDP,
        TensorParallel: SequenceTensor,
    }
    return kinds[type(wish.data)](wish, world, precision)


def _num_copies(wish: SequenceParallel, world: World) -> int:
    if isinstance(wish.data, (DDP, DeepSpeed)):
        return world.size // wish.size
    sharded = wish.data if isinstance(wish.data, FSDP) else wish.data.data
    return sharded.num_copies(world.placement)

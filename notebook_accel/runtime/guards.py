"""Guard rails: mistakes of a training loop that would otherwise only show as bad numbers.

What can be seen at ``prepare`` is looked at there. What shows in the loop is looked for in a
*rehearsal*, the first optimizer steps of each prepared optimizer, by hooks that then remove
themselves: afterwards a step costs nothing more.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections import OrderedDict
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn

from notebook_accel.config.guards import wanted
from notebook_accel.config.words import counted
from notebook_accel.data.loader import Pass, PreparedLoader
from notebook_accel.events import rails
from notebook_accel.events.lines import US, ours_between, owner_of, persons_frame
from notebook_accel.ranks import watch
from notebook_accel.ranks.hooks import Hook
from notebook_accel.ranks.shards import is_sharded
from notebook_accel.ranks.world import World
from notebook_accel.runtime import played
from notebook_accel.runtime.clock import Clock
from notebook_accel.runtime.forgotten import Forgotten
from notebook_accel.runtime.optimizer import PreparedOptimizer
from notebook_accel.runtime.prepare import Wardrobe
from notebook_accel.runtime.rehearsal import Rehearsal, num_backward, watch_batches
from notebook_accel.runtime.torchs_norm import TorchsNorm
from notebook_accel.runtime.unprepared import call_of_prepare, warn_of_no_model, warn_of_nothing
from notebook_accel.strategies.base import Engine


class Guards:
    """The guard rails of one Accelerator."""

    def __init__(self, world: World, engine: Engine, clock: Clock) -> None:
        self._world = world
        self._engine = engine
        self._clock = clock
        self._said_batch = False
        self._has_loader = False
        self._every: Wardrobe | None = None  # once something was prepared
        self._forgotten: Forgotten | None = None
        self._may_be_forgotten = engine.scales or clock.num_steps > 1
        self._seen: set[int] = set()
        self._norm: TorchsNorm | None = None
        # Several ranks train, and neither a model nor an optimizer was prepared yet; one says it.
        self._alone = engine.layout.data_size > 1 and world.rank == 0
        self._met = -1  # how many collectives there were when backward was called last

    def prepared(self, given: Sequence[Any], dressed: Sequence[Any], every: Wardrobe) -> None:
        """Look at what ``prepare`` got and gives; ``every`` is the wardrobe with all there is."""
        person = persons_frame(sys._getframe(1))
        if person is not None and self._world.rank == 0:
            changed = [old for old, new in zip(given, dressed, strict=True) if new is not old]
            if changed and is_discarded(person, sys._getframe(1)):
                self._discarded(given, changed, person)
        self._alone = self._alone and not every.models and not every.optimizers
        self._has_loader = bool(every.loaders)
        self._every = every
        if self._norm is None and (self._engine.scales or self._engine.shares_states):
            self._norm = TorchsNorm(self._engine, every)
        for one in dressed:
            if id(one) in self._seen:
                continue
            if isinstance(one, nn.Module):
                self._seen.add(id(one))
                watch_batches(one, self._world)
                if self._engine.unwrap(one) is not one:
                    mark_wrapped(one)
                elif any(map(is_sharded, one.parameters())):
                    mark_states(one, _Mark(*_IN_PARTS))
            elif isinstance(one, PreparedOptimizer):
                self._seen.add(id(one))
                Rehearsal(self._world, self._engine, self._clock, one, every)
                if self._world.is_fake and len(every.optimizers) == 1:
                    played.tell_once(one, self._engine, every, self._clock)
            elif isinstance(one, PreparedLoader):
                self._seen.add(id(one))
                check_pinned(one, person)
        self._say_batch(every)

    def backward(self) -> None:
        """Note a call of ``accelerator.backward``."""
        num_backward[0] += 1
        if self._may_be_forgotten:
            self._look_for_forgotten()
        if self._alone:
            self._check_alone(persons_frame(sys._getframe(1)))

    def _look_for_forgotten(self) -> None:
        """Look at the first steps for an optimizer that was not prepared, where that is wrong."""
        if self._forgotten is not None:
            self._may_be_forgotten = not self._forgotten.is_over()
        elif self._every is not None:
            self._forgotten = Forgotten(self._engine, self._clock, self._every)

    def _check_alone(self, person: FrameType | None) -> None:
        """Warn of a backward whose gradients nobody averages."""
        if not self._has_loader:
            self._alone = False
            warn_of_nothing(self._world.size, person)
            return
        pulse = watch.pulse()
        met, self._met = self._met, -1 if pulse is None else pulse.num_entered
        if pulse is None or met == -1:  # nobody counts, or this is the first
            return
        self._alone = False
        if met == self._met:  # the person does not average them in a way of his own
            warn_of_no_model(self._world.size, person)

    def _discarded(self, given: Sequence[Any], changed: list[Any], person: FrameType) -> None:
        kinds = ", ".join(type(one).__name__ for one in changed)
        rails.warn(
            "discarded-prepare",
            f"the result of prepare() is thrown away ({kinds})",
            "prepare gives new objects; those that you had are not spread over ranks, "
            "and an optimizer would step on every micro-batch",
            f"write `{call_of_prepare(given)}`",
            *rails.line_of(person),
        )

    def _say_batch(self, every: Wardrobe) -> None:
        """State once what an optimizer step sees, where that is not the loader's batch size."""
        size = self._engine.layout.data_size
        if self._said_batch or size == 1 or not every.optimizers or not every.loaders:
            return
        self._said_batch = True
        loader = every.loaders[0]
        sampler = loader.source.batch_sampler
        has_batches = loader.source.batch_size or getattr(sampler, "batch_size", None)
        if not has_batches or self._world.rank != 0 or not wanted("effective-batch"):
            return
        together = loader.total_batch_size
        steps = self._clock.num_steps
        times = f" x {steps} micro-batches" if steps > 1 else ""
        each = counted(together // size, "sample")
        note_batch(f"{each} x {size} processes{times} = {together * steps} a step")


@functools.cache  # once a launch, however many Accelerators it makes
def note_batch(arithmetic: str) -> None:
    """Say what one optimizer step sees; a statement, not a warning."""
    rails.note(arithmetic)


# ── at prepare ────────────────────────────────────────────────────────────────────────────────


def is_discarded(person: FrameType, callee: FrameType | None) -> bool:
    """Whether the person's line throws away what it is about to be given.

    Only where the person calls ``prepare``, or ``prepare_model`` and the like, with nobody
    between, not even code of ours that keeps the result; compiled code says it.
    """
    while callee is not None and callee is not person:
        code = callee.f_code
        if owner_of(code.co_filename) != US or not code.co_name.startswith("prepare"):
            return False
        callee = callee.f_back
    return _instruction_after(person.f_code, person.f_lasti) == "POP_TOP"


def _instruction_after(code: CodeType, offset: int) -> str:
    later = (one.opname for one in dis.get_instructions(code) if one.offset > offset)
    return next((name for name in later if name not in ("CACHE", "NOP")), "")


def check_pinned(loader: PreparedLoader, person: FrameType | None) -> None:
    """Warn of copies to a device that were asked not to wait, and must."""
    seat = loader.reading.seat
    if seat.device is None or not seat.non_blocking or loader.source.pin_memory or seat.rank != 0:
        return
    rails.warn(
        "unpinned",
        "non_blocking=True for a loader whose memory is not pinned",
        "a copy from memory that is not pinned waits for the device in any case",
        "make the loader with pin_memory=True",
        *rails.line_of(person),
    )


def mark_wrapped(model: nn.Module) -> None:
    """Let a wrapped model, and its state dict, warn when somebody pickles them."""
    mark = _Mark(*_WRAPPED)
    vars(model)["_saved_by_mistake"] = mark
    mark_states(model, mark)


def mark_states(model: nn.Module, mark: _Mark) -> None:
    """Let state dicts of ``model`` warn by ``mark`` when somebody pickles them."""

    def put_mark(module: nn.Module, state: Any, prefix: str, metadata: Any) -> None:
        metadata["saved_by_mistake"] = mark

    model._register_state_dict_hook(Hook(put_mark))  # type: ignore[no-untyped-call]


_WRAPPED = (
    "a wrapped model is saved",
    "its keys begin with 'module.', and a plain model does not know them",
)
_IN_PARTS = (
    "the state of a model in parts is saved",
    "each rank holds a part of it, and the file gets this rank's alone",
)


class _Mark(OrderedDict[str, Any]):
    """Travels as an empty OrderedDict, which every way of loading knows."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__()
        self.what = what
        self.why = why

    def __reduce_ex__(self, protocol: Any) -> Any:
        person = persons_frame(sys._getframe(1))
        if person is not None and not ours_between(sys._getframe(1), person):
            rails.warn(
                "wrapped-save",
                self.what,
                self.why,
                "save accelerator.get_state_dict(model), which all ranks call, or write "
                "accelerator.save_model(model, folder)",
                *rails.line_of(person),
            )
        return OrderedDict, ()

    def __deepcopy__(self, memo: Any) -> _Mark:
        return self


# ── in an evaluation ──────────────────────────────────────────────────────────────────────────


def check_gather(tensor: Any, current: Pass | None, rank: int) -> None:
    """Warn where ``gather`` is about to keep samples that the last batch repeats."""
    share = None if current is None else current.share
    if share is None or share.even or rank != 0 or torch.is_grad_enabled():
        return
    rows = share.rows[rank]
    if sum(share.real) == sum(share.rows) or not isinstance(tensor, Tensor):
        return
    if tensor.dim() and tensor.shape[0] == rows:
        person = persons_frame(sys._getframe(1))
        repeats = sum(share.rows) - sum(share.real)
        rails.warn(
            "plain-gather",
            f"gather() in an evaluation counts {repeats} samples of the last batch twice",
            "they are repeated so that all ranks have equal batches",
            "use accelerator.gather_for_metrics",
            *rails.line_of(person),
        )

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
from torch.optim import Optimizer

from notebook_accel.config.guards import wanted
from notebook_accel.data.loader import Pass, PreparedLoader
from notebook_accel.events import context, rails
from notebook_accel.events.lines import US, owner_of, persons_frame
from notebook_accel.ranks.hooks import Hook
from notebook_accel.ranks.world import World
from notebook_accel.runtime.clock import Clock
from notebook_accel.runtime.optimizer import PreparedOptimizer
from notebook_accel.runtime.unprepared import call_of_prepare, check_loader, warn_of_nothing
from notebook_accel.strategies.base import Engine

REHEARSAL_STEPS = 4

_num_backward = [0]  # calls of accelerator.backward, of any Accelerator of this process


class Guards:
    """The guard rails of one Accelerator."""

    def __init__(self, world: World, engine: Engine, clock: Clock) -> None:
        self._world = world
        self._engine = engine
        self._clock = clock
        self._said_batch = False
        self._seen: set[int] = set()
        # Several ranks train, and nothing was prepared yet; one of them says it.
        self._alone = engine.layout.data_size > 1 and world.rank == 0

    def prepared(self, given: Sequence[Any], dressed: Sequence[Any], every: Any) -> None:
        """Look at what ``prepare`` got and gives; ``every`` is the wardrobe with all there is."""
        person = persons_frame(sys._getframe(1))
        if person is not None and self._world.rank == 0:
            changed = [old for old, new in zip(given, dressed, strict=True) if new is not old]
            if changed and is_discarded(person, sys._getframe(1)):
                self._discarded(given, changed, person)
        self._alone = False
        for one in dressed:
            if id(one) in self._seen:
                continue
            if isinstance(one, nn.Module) and self._engine.unwrap(one) is not one:
                self._seen.add(id(one))
                mark_wrapped(one)
            elif isinstance(one, PreparedOptimizer):
                self._seen.add(id(one))
                Rehearsal(self._world, self._engine, self._clock, one, every)
            elif isinstance(one, PreparedLoader):
                self._seen.add(id(one))
                check_pinned(one, person)
        self._say_batch(every)

    def backward(self) -> None:
        """Note a call of ``accelerator.backward``."""
        _num_backward[0] += 1
        if self._alone:
            self._alone = False
            warn_of_nothing(self._world.size, persons_frame(sys._getframe(1)))

    def _discarded(self, given: Sequence[Any], changed: list[Any], person: FrameType) -> None:
        kinds = ", ".join(type(one).__name__ for one in changed)
        rails.warn(
            "discarded-prepare",
            f"the result of prepare() is thrown away ({kinds})",
            "prepare gives new objects; those that you had are not spread over ranks, "
            "and an optimizer would step on every micro-batch",
            f"write `{call_of_prepare(given)}`",
            person.f_code.co_filename,
            person.f_lineno,
        )

    def _say_batch(self, every: Any) -> None:
        """State once what an optimizer step sees, where that is not the loader's batch size."""
        size = self._engine.layout.data_size
        if self._said_batch or size == 1 or not every.optimizers or not every.loaders:
            return
        self._said_batch = True
        loader = every.loaders[0]
        sampler = loader.source.batch_sampler
        counted = loader.source.batch_size or getattr(sampler, "batch_size", None)
        if not counted or self._world.rank != 0 or not wanted("effective-batch"):
            return
        together = loader.total_batch_size
        steps = self._clock.num_steps
        times = f" x {steps} micro-batches" if steps > 1 else ""
        note_batch(
            f"{together // size} samples x {size} processes{times} = {together * steps} a step"
        )


@functools.cache  # once a launch, however many Accelerators it makes
def note_batch(arithmetic: str) -> None:
    """Say what one optimizer step sees; a statement, not a warning."""
    rails.note(arithmetic)


# ── at prepare ────────────────────────────────────────────────────────────────────────────────


def is_discarded(person: FrameType, callee: FrameType | None) -> bool:
    """Whether the person's line throws away what it is about to be given.

    Only where the person calls ``prepare`` with nothing of others between; compiled code says it.
    """
    while callee is not None and callee is not person:
        if owner_of(callee.f_code.co_filename) != US:
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
    mark = _Mark()
    vars(model)["_saved_by_mistake"] = mark

    def put_mark(module: nn.Module, state: Any, prefix: str, metadata: Any) -> None:
        metadata["saved_by_mistake"] = mark

    model._register_state_dict_hook(Hook(put_mark))  # type: ignore[no-untyped-call]


class _Mark(OrderedDict[str, Any]):
    """Travels as an empty OrderedDict, which every way of loading knows."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        person = persons_frame(sys._getframe(1))
        if person is not None and not _ours_between(sys._getframe(1), person):
            rails.warn(
                "wrapped-save",
                "a wrapped model is saved",
                "its keys begin with 'module.', and a plain model does not know them",
                "save accelerator.get_state_dict(model), or accelerator.unwrap_model(model)",
                person.f_code.co_filename,
                person.f_lineno,
            )
        return OrderedDict, ()

    def __deepcopy__(self, memo: Any) -> _Mark:
        return self


def _ours_between(frame: FrameType | None, person: FrameType) -> bool:
    """Whether a frame of this package, other than a mark's own, lies inside ``person``."""
    while frame is not None and frame is not person:
        if owner_of(frame.f_code.co_filename) == US:
            return True
        frame = frame.f_back
    return False


# ── in the loop ───────────────────────────────────────────────────────────────────────────────


class Rehearsal:
    """Watches the first steps of one optimizer, then lets go of it.

    One parameter stands for all: each gradient that reaches it is a backward pass.
    """

    def __init__(
        self, world: World, engine: Engine, clock: Clock, optimizer: PreparedOptimizer, every: Any
    ) -> None:
        self._world = world
        self._engine = engine
        self._clock = clock
        self._optimizer = optimizer
        self._every = every
        self._steps_left = REHEARSAL_STEPS
        self._rates: list[float] = []  # the learning rate at each backward since the last step
        self._forwards: dict[int, bool] = {}  # wrapped models: whether they ran since the last step
        self._models: list[nn.Module] | None = None
        self._num_backward = _num_backward[0]  # as of the last step
        self._said_direct = False
        inner: Optimizer = optimizer.inner
        groups = inner.param_groups
        probes = [one for group in groups for one in group["params"] if one.requires_grad]
        self._handles: list[Any] = []
        if probes:
            self._handles = [
                probes[-1].register_hook(self._gradient),
                inner.register_step_pre_hook(self._step),
            ]

    def _gradient(self, gradient: Tensor) -> None:
        if self._steps_left == 0:  # not at once: hooks of the step are being walked through there
            for handle in self._handles:
                handle.remove()
            return
        frame = sys._getframe().f_back  # None in a thread of autograd, which serves a GPU
        self._rates.append(self._optimizer.param_groups[0]["lr"])
        if self._models is None:
            self._models = self._find_models()
        person = persons_frame(frame)
        if person is None:
            return
        direct = not _ours_between(frame, person)
        if direct:
            self._check_direct(person)

    def _check_direct(self, person: FrameType | None) -> None:
        """Warn of a backward that was the person's own, where that is wrong."""
        if self._said_direct or not (self._engine.scales or self._clock.num_steps > 1):
            return
        self._said_direct = True
        missing = "scaled" if self._engine.scales else "divided by the accumulated batches"
        self._warn(
            "direct-backward",
            "loss.backward() is called directly",
            f"the loss is not {missing}, so its gradients have another size",
            "write accelerator.backward(loss)",
            person,
        )

    def _step(self, *args: Any) -> None:
        """Look back at what happened since the last step; the step is about to be made."""
        rates, self._rates = self._rates, []
        person = persons_frame(sys._getframe(1))
        if rates:
            if _num_backward[0] == self._num_backward:  # also where autograd's threads hide it
                self._check_direct(person)
                self._check_curve(person)
            if self._steps_left == REHEARSAL_STEPS and self._watches_data:
                check_loader(self._world.size, person)
            self._check_accumulation(rates, person)
            self._check_forwards(person)
            self._check_device(person)
            self._steps_left -= 1
        self._num_backward = _num_backward[0]
        for key in self._forwards:
            self._forwards[key] = False

    @property
    def _watches_data(self) -> bool:
        several = self._engine.layout.data_size > 1 and self._world.rank == 0
        if not several or not self._models or not wanted("unprepared-loader"):
            return False
        return not any(one.samples for one in self._every.loaders)  # the usual loop ends here

    def _check_curve(self, person: FrameType | None) -> None:
        if context.current() is None or self._said_direct:
            return
        averaged = "gradients are averaged all the same, but " if self._models else ""
        self._warn(
            "plain-backward",
            "the optimizer steps, and accelerator.backward(loss) was never called",
            f"{averaged}accumulation, loss scaling and the live curve need the loss",
            "write accelerator.backward(loss) in place of loss.backward()",
            person,
        )

    def _check_accumulation(self, rates: list[float], person: FrameType | None) -> None:
        steps, window = self._clock.num_steps, self._clock.window
        if steps > 1 and window is None and len(rates) == 1:
            self._warn(
                "no-accumulate",
                f"gradient_accumulation_steps={steps}, but the optimizer steps on every batch",
                f"each loss is divided by {steps}, and nothing counts the batches",
                "put the loop's body into `with accelerator.accumulate(model):`",
                person,
            )
        scheduled = hasattr(self._optimizer.inner.step, "_wrapped_by_lr_sched")
        mine = any(self._optimizer in one._optimizers for one in self._every.schedulers)
        if scheduled and not mine and window is not None and len(set(rates)) > 1:
            self._warn(
                "scheduler",
                f"the learning rate moves inside a window of {len(rates)} micro-batches",
                "a scheduler that was not prepared steps on each of them, so its schedule is over "
                f"{len(rates)} times too soon",
                "give the scheduler to accelerator.prepare(), or step it only when "
                "accelerator.sync_gradients",
                person,
            )

    def _check_forwards(self, person: FrameType | None) -> None:
        for model in self._models or ():
            synced = getattr(model, "require_backward_grad_sync", False)
            if synced and not self._forwards.get(id(model), True):
                self._warn(
                    "unsynced-forward",
                    "gradients came from a forward that went past the prepared model",
                    "only a call of the prepared model itself averages gradients over ranks; "
                    "through a method of unwrap_model(...) each rank goes its own way",
                    "call model(...) and let its forward choose what to do",
                    person,
                )

    def _check_device(self, person: FrameType | None) -> None:
        found = {
            one.device
            for group in self._optimizer.param_groups
            for one in group["params"]
            if one.grad is not None
        }
        wrong = misplaced(found, self._world.device)
        if wrong is not None:
            rails.warn(
                "device",
                f"rank {self._world.rank} trains on {wrong}, but its device is "
                f"{self._world.device}",
                "a device written into the code is the same for all ranks, which then share it",
                "use accelerator.device, or leave moving to accelerator.prepare",
                *rails.line_of(person),
            )

    def _find_models(self) -> list[nn.Module]:
        """Find the wrapped models that hold this optimizer's parameters, and watch their calls."""
        mine = {id(one) for group in self._optimizer.param_groups for one in group["params"]}
        found = []
        for model in self._every.models:
            wrapped = self._engine.unwrap(model) is not model
            if wrapped and any(id(one) in mine for one in model.parameters()):
                self._forwards[id(model)] = True  # what ran until now is not known
                hook = Hook(self._ran)
                self._handles.append(model.register_forward_pre_hook(hook))
                found.append(model)
        return found

    def _ran(self, model: nn.Module, args: Any) -> None:
        self._forwards[id(model)] = True

    def _warn(self, name: str, what: str, why: str, fix: str, person: FrameType | None) -> None:
        if self._world.rank == 0:  # all ranks run the same lines
            rails.warn(name, what, why, fix, *rails.line_of(person))


def misplaced(found: set[torch.device], own: torch.device) -> torch.device | None:
    """Give a device that a rank whose device is ``own`` should not compute on, if it does."""
    for device in found:
        index = device.index or 0
        if device.type != own.type or index != (own.index or 0):
            return device
    return None


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

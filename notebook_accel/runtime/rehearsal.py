"""Guard rails of the loop: the first steps of each prepared optimizer, looked at by hooks."""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from notebook_accel.config.guards import wanted
from notebook_accel.events import context, rails
from notebook_accel.events.lines import ours_between, persons_frame
from notebook_accel.ranks.collectives import tensors_of
from notebook_accel.ranks.hooks import Hook
from notebook_accel.ranks.sameness import Comparison, fingerprint
from notebook_accel.ranks.world import World
from notebook_accel.runtime.clock import Clock
from notebook_accel.runtime.optimizer import PreparedOptimizer
from notebook_accel.runtime.prepare import Wardrobe
from notebook_accel.runtime.unprepared import check_loader, warn_of_no_model
from notebook_accel.strategies.base import Engine, parameters_of
from notebook_accel.strategies.compiled import is_compiled_module

REHEARSAL_STEPS = 4

NUM_BATCHES = 2
PATIENCE_S = 2.0

num_backward = [0]  # calls of accelerator.backward, of any Accelerator of this process


class Rehearsal:
    """Watches the first steps of one optimizer, then lets go of it.

    One parameter stands for all: each gradient that reaches it is a backward pass. Among several
    ranks a batch and a gradient are compared, once.

    Ranks: all ranks make theirs in one order.
    """

    def __init__(
        self,
        world: World,
        engine: Engine,
        clock: Clock,
        optimizer: PreparedOptimizer,
        every: Wardrobe,
    ) -> None:
        self._world = world
        self._engine = engine
        self._clock = clock
        self._optimizer = optimizer
        self._every = every
        self._steps_left = REHEARSAL_STEPS
        self._rates: list[float] = []  # the learning rate at each backward since the last step
        self._forwards: dict[int, bool] = {}  # wrapped models: whether they ran since the last step
        # Weakly: this hangs on a parameter, and DDP holds those where no garbage collector looks.
        self._models: list[weakref.ref[nn.Module]] | None = None
        self._is_held = True  # whether any prepared model holds the parameters
        several = engine.layout.data_size > 1
        self._batches = Comparison(world) if several else None
        self._gradients = Comparison(world) if several else None
        self._num_backward = num_backward[0]  # as of the last step
        self._said_direct = False
        inner: Optimizer = optimizer.inner
        probes = [one for one in parameters_of(inner) if one.requires_grad]
        self._handles: list[Any] = []
        if probes:
            self._handles = [
                probes[-1].register_hook(self._gradient),  # type: ignore[no-untyped-call]
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
        if not ours_between(frame, person):
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
            if num_backward[0] == self._num_backward:  # also where autograd's threads hide it
                self._check_direct(person)
                self._check_curve(person)
            self._check_batches(person)
            self._check_gradients(person)
            self._check_accumulation(rates, person)
            self._check_forwards(person)
            self._check_device(person)
            self._steps_left -= 1
        self._num_backward = num_backward[0]
        for key in self._forwards:
            self._forwards[key] = False

    def _check_batches(self, person: FrameType | None) -> None:
        """Warn of ranks that read the same batches from a loader that was not prepared."""
        batches = self._batches
        if batches is None or not batches.is_brought or self._world.rank != 0:
            return
        alike = batches.are_alike()
        if alike is not None:
            self._batches = None
        if alike:
            check_loader(self._world.size, person)

    def _check_gradients(self, person: FrameType | None) -> None:
        """Warn of unlike gradients where no prepared model holds the parameters."""
        gradients = self._gradients
        if gradients is None or self._is_held:
            return
        if not gradients.is_brought:
            mine = [one.grad for one in parameters_of(self._optimizer)]
            gradients.bring(fingerprint(mine) if wanted("unprepared-model") else None)
        if self._world.rank != 0:
            return
        is_last = self._steps_left == 1  # then the others are given a moment
        alike = gradients.are_alike(PATIENCE_S if is_last else 0.0)
        if alike is False:
            warn_of_no_model(self._world.size, person)
        if alike is not None:
            self._gradients = None

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
        for model in (one() for one in self._models or ()):
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
        found = {one.device for one in parameters_of(self._optimizer) if one.grad is not None}
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

    def _find_models(self) -> list[weakref.ref[nn.Module]]:
        """Find the wrapped models that hold this optimizer's parameters, and watch their calls."""
        mine = set(map(id, parameters_of(self._optimizer)))
        every = self._every.models
        holders = [one for one in every if any(id(part) in mine for part in one.parameters())]
        self._is_held = bool(holders)
        found = [one for one in holders if self._engine.unwrap(one) is not one]
        for model in found:
            self._forwards[id(model)] = True  # what ran until now is not known
            hook = Hook(self._ran)
            self._handles.append(model.register_forward_pre_hook(hook, with_kwargs=True))
        return [weakref.ref(one) for one in found]

    def _ran(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        self._forwards[id(model)] = True
        batches = self._batches
        if batches is None or batches.is_brought or not wanted("unprepared-loader"):
            return
        if not any(one.samples for one in self._every.loaders):  # the usual loop ends here
            batches.bring(fingerprint([args, kwargs]))

    def _warn(self, name: str, what: str, why: str, fix: str, person: FrameType | None) -> None:
        if self._world.rank == 0:  # all ranks run the same lines
            rails.warn(name, what, why, fix, *rails.line_of(person))


def watch_batches(model: nn.Module, world: World) -> None:
    """Warn if one of the first batches of ``model`` lies on a device that is another rank's.

    A batch on the CPU is none: a model may move it, and torch says what is wrong if it does not.
    """
    left = [NUM_BATCHES]

    def look(model: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        left[0] -= 1
        if left[0] == 0:
            handle.remove()
        found = {one.device for one in tensors_of([args, kwargs]) if not one.is_cpu}
        wrong = misplaced(found, world.device)
        if wrong is not None:
            rails.warn(
                "device",
                f"rank {world.rank} gives its model a batch on {wrong}, but its device is "
                f"{world.device}",
                "a device written into the code is the same for all ranks, which then share it",
                "use accelerator.device, or prepare the loader, which moves its batches",
                *rails.line_of(persons_frame(sys._getframe(1))),
            )

    if not is_compiled_module(model):  # there a hook is part of what is compiled
        handle = model.register_forward_pre_hook(Hook(look), with_kwargs=True)


def misplaced(found: set[torch.device], own: torch.device) -> torch.device | None:
    """Give a device that a rank whose device is ``own`` should not compute on, if it does."""
    for device in found:
        index = device.index or 0
        if device.type != own.type or index != (own.index or 0):
            return device
    return None

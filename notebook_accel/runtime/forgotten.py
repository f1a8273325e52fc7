"""A guard rail for the optimizer that was never prepared, of a model that was.

Seen when it steps: a hook looks at the first steps of any optimizer, then goes.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from notebook_accel.config.guards import wanted
from notebook_accel.errors import RuntimeMisuse
from notebook_accel.events import rails
from notebook_accel.events.lines import persons_frame
from notebook_accel.runtime.clock import Clock
from notebook_accel.runtime.prepare import Wardrobe
from notebook_accel.strategies.base import Engine, parameters_of

NUM_LOOKS = 4
_NAME = "unprepared-optimizer"
_FIX = "write `model, optimizer = accelerator.prepare(model, optimizer)` before the loop"


class Forgotten:
    """Looks for an optimizer that steps on a prepared model and obeys neither clock nor scale.

    Made at the first backward; ``every`` has all that was prepared.
    """

    def __init__(self, engine: Engine, clock: Clock, every: Wardrobe) -> None:
        self._engine = engine
        self._clock = clock
        self._every = every
        self._left = 0
        self._handle: Any = None
        trained = [p for m in every.models for p in m.parameters() if p.requires_grad]
        known = self._known()
        if all(id(one) in known for one in trained) or not wanted(_NAME):
            return
        self._left = NUM_LOOKS
        mine = weakref.ref(self)  # torch's list of hooks outlives every Accelerator

        def look(optimizer: Optimizer, *args: Any) -> None:
            one = mine()
            if one is not None and one._left and not torch.compiler.is_compiling():
                one._look(optimizer)

        self._handle = register_optimizer_step_pre_hook(look)
        weakref.finalize(self, self._handle.remove)

    def is_over(self) -> bool:
        """Whether it has looked enough; then the hook goes, which it cannot while a step runs."""
        if self._left == 0 and self._handle is not None:
            self._handle.remove()
        return self._left == 0

    def _known(self) -> set[int]:
        return {id(p) for o in self._every.optimizers for p in self._engine.trained(o.inner)}

    def _look(self, optimizer: Optimizer) -> None:
        mine = {id(p) for model in self._every.models for p in model.parameters()}
        known = self._known()
        held = {
            id(one) for one in self._engine.current(parameters_of(optimizer)) if one.requires_grad
        } & mine
        if not held - known:
            return
        self._left -= 1
        if self._engine.scales:
            scaler: Any = self._engine.precision.scaler
            state = scaler._per_optimizer_states.get(id(optimizer), {})
            if not state.get("found_inf_per_device"):  # nobody took the scale off by hand
                self._left = 0
                raise RuntimeMisuse(
                    "an optimizer that was not prepared steps on gradients of a scaled loss",
                    "fp16 losses are multiplied by a large scale, and only a prepared optimizer "
                    "divides by it again: these weights would overflow",
                    _FIX,
                )
        elif not self._clock.sync:
            self._left = 0
            rails.warn(
                _NAME,
                f"gradient_accumulation_steps={self._clock.num_steps}, but the optimizer was not "
                "prepared and steps on every batch",
                "it steps on the gradients of an open window, which ranks have not averaged yet",
                _FIX,
                *rails.line_of(persons_frame(sys._getframe(1))),
            )

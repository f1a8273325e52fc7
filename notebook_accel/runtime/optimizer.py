"""Optimizers and schedulers that obey the clock and the engine, and are themselves for everybody.

A dressed optimizer is a ``torch.optim.Optimizer`` whose state, groups and hooks are the inner
one's; only ``step`` and ``zero_grad`` know about windows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from notebook_accel.data.loader import cannot_travel, other_process
from notebook_accel.runtime.clock import Clock
from notebook_accel.strategies.base import Engine, parameters_of


class PreparedOptimizer(Optimizer):
    """An optimizer that steps once a window.

    ``after_step`` is called with the number of its steps whenever one is over.

    Ranks: all ranks call ``step`` together.
    """

    _is_accelerate_prepared = True  # other libraries ask by this name

    def __init__(
        self, inner: Optimizer, engine: Engine, clock: Clock, after_step: Callable[[int], None]
    ) -> None:
        # Not super().__init__(): groups and state stay the inner optimizer's own.
        self.inner = inner
        self.step_was_skipped = False
        self._engine = engine
        self._clock = clock
        self._after_step = after_step
        self.num_steps = 0
        self._spent = False  # gradients that a step has used up
        self.is_settled = False  # gradients rescaled and unscaled, ready to be read
        self._pid = os.getpid()

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not made yet (a copy in progress)
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __repr__(self) -> str:
        return f"prepared {self.inner!r}"

    def __reduce__(self) -> Any:
        raise cannot_travel("optimizer")

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The inner optimizer's state."""
        return self.inner.state

    @property
    def param_groups(self) -> Any:
        """The inner optimizer's parameter groups."""
        return self.inner.param_groups

    @param_groups.setter
    def param_groups(self, groups: Any) -> None:
        self.inner.param_groups = groups

    @property
    def defaults(self) -> Any:  # type: ignore[override]
        """The inner optimizer's defaults."""
        return self.inner.defaults

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer as it was given, by Accelerate's name."""
        return self.inner

    @property
    def scaler(self) -> Any:
        """The loss scaler of fp16; None for other precisions."""
        return self._engine.precision.scaler

    def train(self) -> None:
        """Say that training goes on, to an optimizer that wants to know (schedule-free ones)."""
        if hasattr(self.inner, "train"):
            self.inner.train()

    def eval(self) -> None:
        """Say that an evaluation begins, to an optimizer that wants to know."""
        if hasattr(self.inner, "eval"):
            self.inner.eval()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients, unless micro-batches of an open window still wait in them."""
        if self._spent or not self._clock.pending:
            self._engine.zero_grad(self.inner, set_to_none)
            self._spent = False
            if self.is_settled:
                self.is_settled = False
                self._engine.forget(self.inner)

    def state_dict(self) -> dict[str, Any]:
        """Give the inner optimizer's state.

        Ranks: all ranks call it, where they share states.
        """
        return self._engine.optimizer_state(self.inner)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict`` gave."""
        self._engine.load_optimizer_state(self.inner, state_dict)

    def abandon(self) -> None:
        """Clear gradients that no step will use, also in an open window."""
        self._spent = True
        self.zero_grad()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update parameters if this micro-batch closes its window; give the closure's loss.

        Inside a window a closure still runs, for the gradients that it adds.
        """
        if not self._clock.sync:
            return None if closure is None else closure()
        if self._pid != os.getpid():
            raise other_process("optimizer")
        if self._clock.rescale is not None or (self._engine.scales and closure is None):
            self.settle()  # here, where ranks tell each other of an overflow: torch's step does not
        if self._engine.clips_at is not None:
            self._clip(self._engine.clips_at)
        updated, loss = self._engine.step(self.inner, closure)
        self.step_was_skipped = not updated
        self._spent = True
        self.is_settled = False
        self.num_steps += 1
        self._after_step(self.num_steps)
        return loss

    def _clip(self, norm: float) -> None:
        self.settle()
        self._engine.clip_grad_norm(parameters_of(self.inner), norm)

    def settle(self) -> None:
        """Make gradients what the step will use: the short window's mean, without loss scale."""
        if not self.is_settled:
            if self._clock.rescale is not None:
                self._engine.scale_gradients(self.inner, self._clock.rescale)
            self._engine.unscale(self.inner)
            self.is_settled = True


class PreparedScheduler(LRScheduler):
    """A scheduler that moves when its optimizers did.

    It steps ``per_step`` times for each optimizer step (usually once a reader of data, so that a
    schedule counted in batches of one process keeps its length), never past its ``total_steps``. A
    ReduceLROnPlateau is about an epoch's metric, not about steps: it steps as it is told.
    """

    _is_accelerate_prepared = True

    def __init__(
        self,
        inner: LRScheduler,
        optimizers: list[PreparedOptimizer],
        clock: Clock,
        per_step: int,
        with_optimizer: bool,
    ) -> None:
        # Not super().__init__(): it would make the optimizer's rates anew.
        self.inner = inner
        self._optimizers = optimizers
        self._clock = clock
        self.per_step = per_step
        self.follows_optimizer = with_optimizer and not isinstance(inner, ReduceLROnPlateau)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __reduce__(self) -> Any:
        raise cannot_travel("scheduler")

    @property
    def scheduler(self) -> LRScheduler:
        """The scheduler as it was given, by Accelerate's name."""
        return self.inner

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Advance the schedule by what one optimizer step is worth."""
        if not self.follows_optimizer:
            self.inner.step(*args, **kwargs)
            return
        if not self._clock.sync or any(one.step_was_skipped for one in self._optimizers):
            return
        total = getattr(self.inner, "total_steps", None)
        for _ in range(self.per_step * self._clock.schedule_steps):
            if total is None or self.inner.last_epoch < total - 1:
                self.inner.step(*args, **kwargs)


def _delegate(face: type, base: type, own: set[str]) -> None:
    """Let ``face`` hand every public method of ``base`` that is not its own to ``inner``."""

    def hand_on(name: str) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return getattr(self.inner, name)(*args, **kwargs)

        method.__name__ = name
        return method

    for name, member in vars(base).items():
        if callable(member) and not name.startswith("_") and name not in own:
            setattr(face, name, hand_on(name))


_delegate(PreparedOptimizer, Optimizer, {"step", "zero_grad", "state_dict", "load_state_dict"})
_delegate(PreparedScheduler, LRScheduler, {"step"})

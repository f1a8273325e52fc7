"""Forward and backward in one call: what every strategy can do, and a pipeline only so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from notebook_accel.runtime.clock import Clock
from notebook_accel.runtime.guards import Guards
from notebook_accel.runtime.live import LiveEvents
from notebook_accel.strategies.base import Engine


class Stepping:
    """The part of an Accelerator that runs a batch forward and back."""

    _engine: Engine
    _clock: Clock
    _guards: Guards
    _live: LiveEvents | None
    _check_process: Callable[[], None]

    def forward_backward(
        self, model: nn.Module, batch: Any, loss_fn: Callable[[Any, Any], Tensor]
    ) -> Tensor:
        """Add the gradients of ``loss_fn(model(inputs), targets)``; give that loss, detached.

        It stands for forward and ``backward`` of a loop under any strategy, and is the only way to
        train under ``Pipeline``, where every rank gets the loss of the last stage. There the batch
        is cut into micro-batches of equally many rows: ``loss_fn`` is a mean over rows.

        Shapes: ``batch`` is ``(inputs, targets)``.
        Ranks: all ranks call it.
        """
        self._check_process()
        self._guards.backward()
        weight = 1 / self._clock.backward()
        loss = self._engine.forward_backward(model, batch, loss_fn, weight)
        if self._live is not None:
            self._live.note(loss, sys._getframe(1))
        return loss

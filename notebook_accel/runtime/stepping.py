"""Forward and backward in one call: what every strategy can do, and a pipeline only so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from notebook_accel.config.misuse import needs
from notebook_accel.config.words import kind_of
from notebook_accel.errors import RuntimeMisuse
from notebook_accel.ranks.collectives import tensors_of
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

        Shapes: ``batch`` is ``(inputs, targets)``, whose tensors have one row a sample; the model
        is called with a dict of inputs by name, with a tuple in order. The loss is one number.
        Ranks: all ranks call it.
        Errors: RuntimeMisuse for another batch or loss.
        """
        self._check_process()
        check_pair(batch)
        self._guards.backward()
        weight = 1 / self._clock.backward()
        loss = self._engine.forward_backward(model, batch, in_one_number(loss_fn), weight)
        if self._live is not None:
            self._live.note(loss, sys._getframe(1))
        return loss


def check_pair(batch: Any) -> None:
    """Refuse what is not inputs and targets of the same samples.

    Errors: RuntimeMisuse.
    """
    needs(
        (tuple, list),
        batch,
        "forward_backward()",
        "its batch is a pair: what the model is called with, and what loss_fn compares with",
        "write accelerator.forward_backward(model, (inputs, targets), loss_fn), as "
        '(batch["x"], batch["y"]) of a dict',
    )
    if len(batch) != 2:
        raise RuntimeMisuse(
            f"forward_backward() got a batch of {len(batch)}",
            "it is a pair: the model is called with the first, loss_fn compares with the second",
            "write (inputs, targets); each may be a tuple or a dict of several tensors",
        )
    inputs, targets = (
        sorted({one.shape[0] for one in tensors_of(part) if one.dim()}) for part in batch
    )
    if len(inputs) == 1 and targets not in ([], inputs):
        raise RuntimeMisuse(
            f"forward_backward() got inputs of {inputs[0]} rows and targets of "
            f"{' and '.join(map(str, targets))}",
            "both are cut by rows where a strategy does so, and a loss would stretch the shorter "
            "one over the other",
            "give targets one row a sample; what has no rows, loss_fn can hold itself",
        )


def in_one_number(loss_fn: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
    """Let ``loss_fn`` give one number, or be told what it gave.

    Errors: RuntimeMisuse, when it is called.
    """

    def checked(outputs: Any, targets: Any) -> Tensor:
        loss = loss_fn(outputs, targets)
        if isinstance(loss, Tensor) and loss.numel() == 1:
            return loss
        what = f"{loss.numel()} numbers" if isinstance(loss, Tensor) else kind_of(loss)
        raise RuntimeMisuse(
            f"loss_fn of forward_backward() gave {what}",
            "gradients are those of one number, a tensor",
            "return the mean over rows: loss.mean()",
        )

    return checked

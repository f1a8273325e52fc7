"""Local SGD: ranks train apart for some steps, then average their parameters."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from notebook_accel.errors import ConfigError

if TYPE_CHECKING:
    from notebook_accel.runtime.accelerator import Accelerator


class LocalSGD:
    """Trains each rank's copy of ``model`` on its own inside the block.

    Every ``local_sgd_steps`` calls of ``step()``, and at the end of the block, parameters become
    their mean over the ranks; gradients are never averaged. Not ``enabled``, or on one rank, it
    does nothing.

    Ranks: all ranks enter the block and call ``step`` equally often.
    Errors: ConfigError for steps below 1.
    Source: Stich 2019, "Local SGD converges fast and communicates little".
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        local_sgd_steps: int,
        enabled: bool = True,
    ) -> None:
        if local_sgd_steps < 1:
            raise ConfigError(
                f"local_sgd_steps={local_sgd_steps} cannot be",
                "it is how many steps ranks make between two averages of their parameters",
                "write local_sgd_steps=8",
            )
        self.enabled = enabled and accelerator.num_processes > 1
        self.num_steps = 0
        self._accelerator = accelerator
        self._model = model
        self._local_sgd_steps = local_sgd_steps
        self._apart = ExitStack()

    def __enter__(self) -> LocalSGD:
        if self.enabled:
            self._apart.enter_context(self._accelerator.no_sync(self._model))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._apart.close()
        if self.enabled and kind is None:
            self._average()

    def step(self) -> None:
        """Count one step, and average the parameters when it is time.

        Ranks: all ranks call it.
        """
        self.num_steps += 1
        if self.enabled and self.num_steps % self._local_sgd_steps == 0:
            self._average()

    @torch.no_grad()
    def _average(self) -> None:
        parameters = [one for one in self._model.parameters() if one.requires_grad]
        means: list[Any] = self._accelerator.reduce(parameters, "mean")
        for parameter, mean in zip(parameters, means, strict=True):
            parameter.copy_(mean)

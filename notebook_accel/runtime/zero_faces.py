"""Names by which other libraries know DeepSpeed's parts under Accelerate."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from torch import Tensor

from notebook_accel.config.installed import is_installed
from notebook_accel.runtime.optimizer import PreparedOptimizer, PreparedScheduler

DeepSpeedOptimizerWrapper = PreparedOptimizer
DeepSpeedSchedulerWrapper = PreparedScheduler


class DeepSpeedEngineWrapper:
    """A DeepSpeed engine of the person's own, which steps in the backward that closes a window."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def backward(self, loss: Tensor, sync_gradients: bool = True, **kwargs: Any) -> None:
        """Add the gradients of ``loss``, and step if ``sync_gradients``.

        Ranks: all ranks call it.
        """
        if self.engine.managed_gradient_accumulation():
            self.engine.set_gradient_accumulation_boundary(is_boundary=sync_gradients)
        self.engine.backward(loss, **kwargs)
        if sync_gradients:
            self.engine.step()

    def get_global_grad_norm(self) -> float | None:
        """Give the norm of the gradients of the last step."""
        norm = self.engine.get_global_grad_norm()
        return norm.item() if isinstance(norm, Tensor) else norm


def GatheredParameters(
    params: Any, modifier_rank: int | None = None, fwd_module: Any = None, enabled: bool = True
) -> Any:
    """Have parameters of ZeRO's stage 3 whole inside the block; others always are.

    What ``modifier_rank`` changes in them counts on all ranks.

    Ranks: all ranks enter it.
    """
    if not enabled or not is_installed("deepspeed"):
        return nullcontext()
    from deepspeed.zero import GatheredParameters as gathered

    return gathered(params, modifier_rank=modifier_rank, fwd_module=fwd_module)

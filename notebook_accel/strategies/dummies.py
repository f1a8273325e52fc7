"""Stand-ins for an optimizer and a scheduler that DeepSpeed's own configuration describes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from notebook_accel.errors import RuntimeMisuse


class DummyOptim(Optimizer):
    """Stands for the optimizer in the "optimizer" section of DeepSpeed's configuration.

    ``prepare`` makes that one; ``lr`` and ``weight_decay`` are what it says for "auto".
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 0.001, weight_decay: float = 0, **kwargs: Any
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.lr = lr
        self.weight_decay = weight_decay
        self.kwargs = kwargs

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Refuse: there is nothing to step.

        Errors: RuntimeMisuse.
        """
        raise RuntimeMisuse(
            "DummyOptim.step()",
            "it only stands for the optimizer of DeepSpeed's configuration, which prepare() makes "
            "under strategy=DeepSpeed(...)",
            "write accelerator.prepare(model, optimizer) with that strategy, or use an optimizer "
            "of torch.optim",
        )


class DummyScheduler(LRScheduler):
    """Stands for the scheduler in the "scheduler" section of DeepSpeed's configuration.

    ``prepare`` makes that one, or what ``lr_scheduler_callable(optimizer)`` gives; it moves once an
    update. ``total_num_steps`` and ``warmup_num_steps`` are what "auto" says there.
    """

    def __init__(
        self,
        optimizer: Any,
        total_num_steps: int | None = None,
        warmup_num_steps: int = 0,
        lr_scheduler_callable: Callable[[Any], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        # Not super().__init__(): it moves nothing.
        self.optimizer = optimizer
        self.total_num_steps = total_num_steps
        self.warmup_num_steps = warmup_num_steps
        self.lr_scheduler_callable = lr_scheduler_callable
        self.kwargs = kwargs

    def step(self, *args: Any) -> None:
        """Refuse: there is nothing to move.

        Errors: RuntimeMisuse.
        """
        raise RuntimeMisuse(
            "DummyScheduler.step()",
            "it only stands for the scheduler of DeepSpeed's configuration, which prepare() makes "
            "under strategy=DeepSpeed(...)",
            "write accelerator.prepare(scheduler) with that strategy, or use a scheduler of "
            "torch.optim.lr_scheduler",
        )

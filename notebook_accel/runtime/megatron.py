"""What Accelerate has for loops under Megatron: what a loop of ours needs is served, or said.

There the step is Megatron's, with batches and losses of its own; here the loop is the person's.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from notebook_accel.config.resolve import resolve
from notebook_accel.errors import ConfigError
from notebook_accel.ranks.collectives import reduce
from notebook_accel.ranks.world import World

Call = TypeVar("Call", bound=Callable[..., Any])


class MegatronLMDummyScheduler(LambdaLR):
    """A rate that rises over ``warmup_num_steps`` and falls until ``total_num_steps``.

    It falls as ``MEGATRON_LM_LR_DECAY_STYLE`` says ("linear", "cosine", "constant",
    "inverse-square-root"), to ``MEGATRON_LM_MIN_LR``. It is a real scheduler, to be prepared and
    stepped.

    Errors: ConfigError for an unknown style.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_num_steps: int | None = None,
        warmup_num_steps: int = 0,
        **kwargs: Any,
    ) -> None:
        found = resolve({})
        self._style = str(found.megatron_lm_lr_decay_style)
        self._total, self._warmup = total_num_steps, warmup_num_steps
        if self._style not in _FALLS:
            raise ConfigError(
                f"MEGATRON_LM_LR_DECAY_STYLE={self._style}",
                f"a rate can fall: {', '.join(_FALLS)}",
                "set one of these, or prepare a scheduler of torch",
            )
        least = [found.megatron_lm_min_lr / one["lr"] for one in optimizer.param_groups]
        super().__init__(optimizer, [self._factor(one) for one in least])

    def _factor(self, least: float) -> Callable[[int], float]:
        def factor(step: int) -> float:
            if step < self._warmup:
                return step / self._warmup
            if self._total is None:
                return 1.0
            return max(least, _FALLS[self._style](step, self._warmup, self._total))

        return factor


def _part(step: int, warmup: int, total: int) -> float:
    return min(1.0, (step - warmup) / max(1, total - warmup))


_FALLS: dict[str, Callable[[int, int, int], float]] = {
    "constant": lambda step, warmup, total: 1.0,
    "linear": lambda step, warmup, total: 1.0 - _part(step, warmup, total),
    "cosine": lambda step, warmup, total: (1 + math.cos(math.pi * _part(step, warmup, total))) / 2,
    "inverse-square-root": lambda step, warmup, total: math.sqrt(max(1, warmup) / max(1, step)),
}


class MegatronLMDummyDataLoader:
    """What stands for Megatron's own datasets; they are not read here.

    Errors: ConfigError, always.
    """

    def __init__(self, **dataset_kwargs: Any) -> None:
        raise ConfigError(
            "MegatronLMDummyDataLoader stands for Megatron's own indexed datasets",
            "they are read by Megatron-LM's code, and here a loader of yours is prepared",
            "prepare a torch DataLoader over the same data",
        )


class AbstractTrainStep(ABC):
    """What a step of Megatron's says: its batch, its loss, its forward. A loop here needs none."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    @abstractmethod
    def get_batch_func(self, accelerator: Any, megatron_dataset_flag: bool) -> Any:
        """Give what makes a batch."""

    @abstractmethod
    def get_forward_step_func(self) -> Any:
        """Give what runs a batch forward."""

    @abstractmethod
    def get_loss_func(self, accelerator: Any) -> Any:
        """Give what makes a loss of outputs."""


class _StepOfMegatrons:
    def __init__(self, accelerator: Any = None, args: Any = None) -> None:
        raise ConfigError(
            f"{type(self).__name__} is a step of Megatron's own model",
            "here your model is trained, by your loop",
            "write loss = accelerator.forward_backward(model, (inputs, targets), loss_fn)",
        )


class BertTrainStep(_StepOfMegatrons):
    """The step of Megatron's Bert. Errors: ConfigError, always."""


class GPTTrainStep(_StepOfMegatrons):
    """The step of Megatron's GPT. Errors: ConfigError, always."""


class T5TrainStep(_StepOfMegatrons):
    """The step of Megatron's T5. Errors: ConfigError, always."""


def avg_losses_across_data_parallel_group(losses: Sequence[Tensor]) -> Tensor:
    """Average each loss over the readers of data.

    Shapes: n losses of one number give ``[n]``.
    Ranks: all ranks call it.
    """
    # Ranks of one reader have the same loss, so the mean over ranks is that over readers.
    mean: Tensor = reduce(torch.stack([one.detach().view(()) for one in losses]), _world(), "mean")
    return mean


def _world() -> World:
    return World.join()


def add_model_config_to_megatron_parser(model_type: str) -> Callable[[Call], Call]:
    """Give the function back that says how Megatron builds a ``model_type``: nobody asks it."""
    return lambda function: function

"""Accelerate's classes of optimizers and schedulers: what they are, and what making one gives."""

from __future__ import annotations

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

from notebook_accel import Accelerator
from notebook_accel.errors import ConfigError
from notebook_accel.optimizer import AcceleratedOptimizer
from notebook_accel.scheduler import AcceleratedScheduler


def weight_and_optimizer() -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
    weight = torch.nn.Parameter(torch.zeros(1))
    return weight, torch.optim.SGD([weight], lr=1.0)


def test_what_prepare_gives_is_one_of_them() -> None:
    _, inner = weight_and_optimizer()
    schedule = StepLR(inner, 1)
    optimizer, scheduler = Accelerator(cpu=True).prepare(inner, schedule)
    assert isinstance(optimizer, AcceleratedOptimizer) and optimizer.optimizer is inner
    assert isinstance(scheduler, AcceleratedScheduler) and scheduler.scheduler is schedule
    assert issubclass(type(optimizer), AcceleratedOptimizer)
    assert not isinstance(inner, AcceleratedOptimizer)
    assert not isinstance(scheduler, AcceleratedOptimizer)
    assert optimizer._is_accelerate_prepared and scheduler._is_accelerate_prepared
    assert optimizer.scaler is None


def test_one_that_is_made_by_hand_knows_the_newest_accelerators_windows() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    weight, inner = weight_and_optimizer()
    optimizer = AcceleratedOptimizer(inner)
    scheduler = AcceleratedScheduler(StepLR(inner, 1, gamma=0.5), optimizer)
    assert AcceleratedOptimizer(optimizer) is optimizer
    seen = []
    for _ in range(4):
        with accelerator.accumulate():
            accelerator.backward(weight.sum())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        seen.append((weight.item(), scheduler.get_last_lr()[0]))
    assert seen == [(0, 1), (-1, 0.5), (-1, 0.5), (-1.5, 0.25)]
    with pytest.raises(ConfigError) as error:
        AcceleratedOptimizer(inner, scaler=torch.amp.GradScaler("cpu"))
    assert "AcceleratedOptimizer(scaler=...) outside of an Accelerator" in error.value.what
    assert "moves once an iteration" in error.value.why
    assert 'Accelerator(mixed_precision="fp16")' in error.value.fix


def test_training_and_evaluating_is_said_to_who_wants_to_know() -> None:
    _, plain = weight_and_optimizer()

    class ScheduleFree(torch.optim.SGD):
        mode = ""

        def train(self) -> None:
            self.mode = "train"

        def eval(self) -> None:
            self.mode = "eval"

    inner = ScheduleFree([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    optimizer, other = Accelerator(cpu=True).prepare(inner, plain)
    optimizer.train()
    assert inner.mode == "train"
    optimizer.eval()
    assert inner.mode == "eval"
    other.train()
    other.eval()

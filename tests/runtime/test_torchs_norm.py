"""torch's own norm of gradients is refused where a rank has a part of them, and only there."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_ as imported_before

from notebook_accel import Accelerator, notebook_launcher
from notebook_accel.config.deepspeed import DeepSpeed
from notebook_accel.config.installed import is_installed
from notebook_accel.config.wishes import DDP, FSDP, Pipeline, Strategy, TensorParallel
from notebook_accel.errors import RuntimeMisuse
from notebook_accel.events import rails
from tests.support.nets import PLAN, Net


def ways() -> list[Any]:
    return [imported_before, torch.nn.utils.clip_grad_norm_, lambda p, _: total(p)]


def total(parameters: Any) -> torch.Tensor:
    return torch.nn.utils.get_total_norm([one.grad for one in parameters if one.grad is not None])


def measures(strategy: Strategy) -> list[str | float]:
    """What torch says by every name, and then what the accelerator says; of another model too."""
    accelerator = Accelerator(cpu=True, strategy=strategy)
    torch.manual_seed(0)
    model = Net()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    x = torch.linspace(-1, 1, 32).view(8, 4)
    accelerator.forward_backward(model, (x, x[:, :1]), nn.functional.mse_loss)
    told: list[str | float] = []
    for way in ways():
        try:
            norm = way(list(model.parameters()), 1e9)
            told.append(float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm))
        except RuntimeMisuse as error:
            told.append(str(error))
    mine = float(accelerator.clip_grad_norm_(model.parameters(), 1e9))
    optimizer.step()
    other = nn.Linear(2, 1)
    other(torch.ones(1, 2)).sum().backward()
    assert torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0) == pytest.approx(3**0.5)
    return [*told, mine]


@pytest.mark.parametrize("strategy", [Pipeline(), TensorParallel(2, plan=PLAN)])
def test_a_norm_of_a_part_of_the_gradients_is_refused(strategy: Strategy) -> None:
    for *told, _ in notebook_launcher(measures, (strategy,), 2, device="cpu"):
        for words in told:
            assert "no rank has all gradients under this strategy" in words
            assert "accelerator.clip_grad_norm_(model.parameters(), max_norm)" in words


@pytest.mark.slow
@pytest.mark.skipif(not is_installed("deepspeed"), reason="DeepSpeed is not installed")
def test_a_norm_under_deepspeed_is_refused() -> None:
    for *told, _ in notebook_launcher(measures, (DeepSpeed(zero_stage=2),), 2, device="cpu"):
        assert all("no rank has all gradients" in words for words in told)


@pytest.mark.parametrize("strategy", [DDP(), FSDP()])
def test_a_norm_of_all_gradients_is_torchs_own(strategy: Strategy) -> None:
    for *told, mine in notebook_launcher(measures, (strategy,), 2, device="cpu"):
        assert told == [pytest.approx(mine)] * 3


def clips_scaled(unscales: bool) -> list[str]:
    rails._said.clear()
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    model = Net()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            accelerator.backward(model(torch.ones(2, 4)).square().mean())
            if unscales:
                accelerator.unscale_gradients()
            imported_before(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return [str(one.message) for one in caught]


def test_a_norm_of_scaled_gradients_is_told_once() -> None:
    said = clips_scaled(unscales=False)
    assert len(said) == 1
    assert "torch's own clip_grad_norm_ measures gradients of a scaled loss" in said[0]
    assert "accelerator.clip_grad_norm_" in said[0]
    assert clips_scaled(unscales=True) == []

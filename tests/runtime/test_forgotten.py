"""The optimizer that nobody prepared: told of at its first wrong step, and only then."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from notebook_accel import Accelerator
from notebook_accel.errors import GuardRail, RuntimeMisuse


def trains(accelerator: Accelerator, forget: bool, in_windows: bool = False) -> nn.Module:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = accelerator.prepare(DataLoader(torch.ones(4, 2), batch_size=1))
    model = accelerator.prepare(model)
    if not forget:
        optimizer = accelerator.prepare(optimizer)
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).float().sum())
            if accelerator.sync_gradients or not in_windows:
                optimizer.step()
                optimizer.zero_grad()
    return model


def test_a_step_on_scaled_gradients_is_refused_before_weights_overflow() -> None:
    with pytest.raises(RuntimeMisuse) as caught:
        trains(Accelerator(cpu=True, mixed_precision="fp16"), forget=True)
    assert "not prepared steps on gradients of a scaled loss" in caught.value.what
    assert "would overflow" in caught.value.why
    assert "accelerator.prepare(model, optimizer)" in caught.value.fix


def test_a_step_inside_a_window_is_warned_of_once() -> None:
    with pytest.warns(GuardRail, match="was not prepared and steps on every batch") as caught:
        trains(Accelerator(cpu=True, gradient_accumulation_steps=2), forget=True)
    assert len(caught) == 1


@pytest.mark.parametrize("precision", ["no", "fp16"])
def test_prepared_optimizers_and_steps_at_a_window_s_end_are_right(precision: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", GuardRail)
        made = {"cpu": True, "mixed_precision": precision, "gradient_accumulation_steps": 2}
        model = trains(Accelerator(**made), forget=False)
        assert torch.isfinite(model.weight).all()
        if precision == "no":
            trains(Accelerator(**made), forget=True, in_windows=True)

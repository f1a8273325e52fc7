"""fp16's loss scale: one a whole iteration, however the loop is written."""

from __future__ import annotations

import pytest
import torch

from notebook_accel import Accelerator
from notebook_accel.config.handlers import GradScalerKwargs


def scaled(num_models: int = 1, steps: int = 1):
    accelerator = Accelerator(
        mixed_precision="fp16",
        gradient_accumulation_steps=steps,
        cpu=True,
        kwargs_handlers=[GradScalerKwargs(init_scale=1024.0, growth_interval=1)],
    )
    models = [torch.nn.Linear(1, 1) for _ in range(num_models)]
    for model in models:
        torch.nn.init.zeros_(model.weight)
    optimizers = [torch.optim.SGD(model.parameters(), lr=1.0) for model in models]
    return accelerator, accelerator.prepare(*models, *optimizers)


def test_two_clipped_optimizers_step_by_gradients_of_one_scale() -> None:
    accelerator, (one, two, first, second) = scaled(2)
    for _ in range(2):
        accelerator.backward(one(torch.ones(1, 1)).sum())
        accelerator.backward(two(torch.ones(1, 1)).sum())
        for model in (one, two):
            norm = accelerator.clip_grad_norm_(model.parameters(), 1e9)
            assert norm.item() == pytest.approx(2**0.5)
        for optimizer in (first, second):
            optimizer.step()
            optimizer.zero_grad()
    assert one.weight.item() == two.weight.item() == -2.0


def test_the_scale_moves_once_an_iteration() -> None:
    accelerator, (one, two, first, second) = scaled(2)
    accelerator.backward(one(torch.ones(1, 1)).sum() + two(torch.ones(1, 1)).sum())
    first.step()
    second.step()
    assert accelerator.scaler.get_scale() == 2048.0
    assert accelerator.scaler.state_dict()["scale"] == 2048.0


def test_an_overflow_of_one_optimizer_leaves_the_other_s_gradients_alone() -> None:
    accelerator, (one, two, first, second) = scaled(2)
    accelerator.backward(one(torch.ones(1, 1)).sum() * float("inf"))
    accelerator.backward(two(torch.ones(1, 1)).sum())
    first.step()
    second.step()
    assert first.step_was_skipped
    assert not second.step_was_skipped
    assert one.weight.item() == 0.0
    assert two.weight.item() == -1.0
    assert accelerator.scaler.get_scale() == 512.0


def test_clipped_gradients_that_are_thrown_away_leave_nothing_behind() -> None:
    accelerator, (model, optimizer) = scaled()
    for skip in (True, False):
        accelerator.backward(model(torch.ones(1, 1)).sum())
        norm = accelerator.clip_grad_norm_(model.parameters(), 1e9)
        assert norm.item() == pytest.approx(2**0.5)
        if not skip:
            optimizer.step()
        optimizer.zero_grad()
    assert model.weight.item() == -1.0


def test_an_exception_between_clip_and_step_leaves_nothing_behind() -> None:
    accelerator, (model, optimizer) = scaled(steps=2)
    with pytest.raises(KeyboardInterrupt), accelerator.accumulate(model):
        accelerator.backward(model(torch.ones(1, 1)).sum())
        accelerator.sync_gradients = True
        accelerator.clip_grad_norm_(model.parameters(), 1e9)
        raise KeyboardInterrupt
    for _ in range(2):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(1, 1)).sum())
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), 1e9)
                assert norm.item() == pytest.approx(2**0.5)
            optimizer.step()
            optimizer.zero_grad()
    assert model.weight.item() == -1.0


def test_two_steps_on_the_same_gradients_are_two_steps() -> None:
    accelerator, (model, optimizer) = scaled()
    accelerator.backward(model(torch.ones(1, 1)).sum())
    optimizer.step()
    model.weight.grad.fill_(accelerator.scaler.get_scale())
    optimizer.step()
    assert model.weight.item() == -2.0


def test_a_scale_that_the_person_updates_is_not_moved_again() -> None:
    accelerator, (model, optimizer) = scaled()
    accelerator.backward(model(torch.ones(1, 1)).sum())
    optimizer.step()
    accelerator.scaler.update(16.0)
    assert accelerator.scaler.get_scale() == 16.0
    accelerator.scaler.load_state_dict({**accelerator.scaler.state_dict(), "scale": 4.0})
    assert accelerator.scaler.get_scale() == 4.0

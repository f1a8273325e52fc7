"""Dressed optimizers and schedulers are still torch's, and obey windows, overflow and ranks."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR, ReduceLROnPlateau

from notebook_accel import Accelerator
from notebook_accel.errors import RuntimeMisuse
from notebook_accel.events import context
from tests.support.ranks import run_ranks


def dressed(kind=torch.optim.SGD, **options):
    accelerator = Accelerator(**{"cpu": True, **options.pop("accelerator", {})})
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    inner = kind(model.parameters(), **{"lr": 0.1, **options})
    model, optimizer = accelerator.prepare(model, inner)
    return accelerator, model, inner, optimizer


def test_a_dressed_optimizer_is_a_torch_optimizer_with_the_inner_s_state() -> None:
    accelerator, model, inner, optimizer = dressed(torch.optim.AdamW)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.param_groups is inner.param_groups
    assert optimizer.state is inner.state
    assert optimizer.defaults is inner.defaults
    accelerator.backward(model(torch.ones(1, 1)).sum())
    optimizer.step()
    assert optimizer.state_dict()["state"].keys() == {0, 1}
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    assert len(inner.param_groups) == 2
    optimizer.param_groups = inner.param_groups[:1]
    assert len(inner.param_groups) == 1
    assert "AdamW" in repr(optimizer)


def test_hooks_on_a_dressed_optimizer_run() -> None:
    """E2."""
    accelerator, model, _inner, optimizer = dressed()
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    handle = optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    accelerator.backward(model(torch.ones(1, 1)).sum())
    optimizer.step()
    handle.remove()
    optimizer.step()
    assert calls == ["before", "after", "before"]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.LBFGS])
def test_a_closure_s_loss_is_returned_and_goes_down(kind) -> None:
    """OS04."""
    accelerator, model, _, optimizer = dressed(kind)

    def closure():
        optimizer.zero_grad()
        loss = (model(torch.ones(1, 1)) - 3).square().mean()
        accelerator.backward(loss)
        return loss

    losses = [optimizer.step(closure).item() for _ in range(4)]
    assert losses[-1] < losses[0]


def test_a_closure_inside_an_open_window_only_adds_its_gradients() -> None:
    accelerator, model, _, optimizer = dressed(accelerator={"gradient_accumulation_steps": 2})
    before = model.weight.item()

    def closure():
        loss = model(torch.ones(1, 1)).sum()
        accelerator.backward(loss)
        return loss

    with accelerator.accumulate(model):
        assert optimizer.step(closure).item() == pytest.approx(model(torch.ones(1, 1)).item())
        assert model.weight.item() == before
        assert model.weight.grad.item() == 0.5
    with accelerator.accumulate(model):
        optimizer.step(closure)
    assert model.weight.item() == pytest.approx(before - 0.1)


def test_closures_are_refused_under_loss_scaling() -> None:
    _accelerator, _, _, optimizer = dressed(accelerator={"mixed_precision": "fp16"})
    with pytest.raises(RuntimeMisuse) as error:
        optimizer.step(lambda: None)
    assert "optimizer.step(closure) under mixed_precision='fp16'" in error.value.what
    assert "bf16" in error.value.fix


def test_an_overflow_under_fp16_skips_the_step_and_says_so() -> None:
    accelerator, model, inner, optimizer = dressed(accelerator={"mixed_precision": "fp16"})
    scheduler = accelerator.prepare(LambdaLR(inner, lambda step: 1.0 / (step + 1)))
    before = model.weight.item()
    for factor, skipped in ((float("inf"), True), (1.0, False)):
        optimizer.zero_grad()
        accelerator.backward(model(torch.ones(1, 1)).sum() * factor)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        assert optimizer.step_was_skipped is skipped
        assert (model.weight.item() == before) is skipped
        assert scheduler.get_last_lr() == ([0.1] if skipped else [0.05])


def test_fp16_clips_gradients_without_their_scale() -> None:
    accelerator, model, _, optimizer = dressed(accelerator={"mixed_precision": "fp16"})
    accelerator.backward(model(torch.ones(1, 1)).sum() * 0.5)
    norm = accelerator.clip_grad_norm_(model.parameters(), 100.0)
    assert norm.item() == pytest.approx(0.5 * 2**0.5, rel=1e-3)
    before = model.weight.item()
    optimizer.step()
    assert model.weight.item() == pytest.approx(before - 0.05, rel=1e-3)


def test_a_dressed_scheduler_is_a_torch_scheduler_and_waits_for_its_optimizer() -> None:
    accelerator, model, inner, optimizer = dressed(accelerator={"gradient_accumulation_steps": 2})
    scheduler = accelerator.prepare(LambdaLR(inner, lambda step: 1.0 / (step + 1)))
    assert isinstance(scheduler, LRScheduler)
    rates = []
    for _ in range(4):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(1, 1)).sum())
            optimizer.step()
            scheduler.step()
        rates.append(scheduler.get_last_lr()[0])
    assert rates == pytest.approx([0.1, 0.05, 0.05, 0.1 / 3])
    assert scheduler.state_dict()["last_epoch"] == 2
    scheduler.load_state_dict({**scheduler.state_dict(), "last_epoch": 5})
    assert scheduler.last_epoch == 5


def test_a_scheduler_built_on_the_dressed_optimizer_works_too() -> None:
    accelerator, model, _, optimizer = dressed()
    scheduler = accelerator.prepare(LambdaLR(optimizer, lambda step: 0.5**step))
    accelerator.backward(model(torch.ones(1, 1)).sum())
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)


def test_a_scheduler_may_be_prepared_before_its_optimizer_in_the_list() -> None:
    accelerator = Accelerator(cpu=True)
    inner = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler, optimizer = accelerator.prepare(LambdaLR(inner, lambda step: 1.0), inner)
    assert scheduler._optimizers == [optimizer]


def test_a_scheduler_of_its_own_pace_steps_as_it_is_told() -> None:
    accelerator, model, inner, _ = dressed(
        accelerator={"step_scheduler_with_optimizer": False, "gradient_accumulation_steps": 2}
    )
    scheduler = accelerator.prepare(LambdaLR(inner, lambda step: 0.5**step))
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.ones(1, 1)).sum())
        inner.step()
        scheduler.step()
    assert scheduler.get_last_lr() == [0.05]


def test_wrappers_travel_home_as_what_they_wrap_and_nowhere_else() -> None:
    accelerator, _, inner, optimizer = dressed()
    plain = LambdaLR(inner, lambda step: 1.0)
    scheduler = accelerator.prepare(plain)
    assert context.encoders[type(optimizer)](optimizer) is inner
    assert context.encoders[type(scheduler)](scheduler) is plain
    for one, name in ((optimizer, "optimizer"), (scheduler, "scheduler")):
        with pytest.raises(RuntimeMisuse, match=f"prepared {name} cannot travel"):
            pickle.dumps(one)
    loader = accelerator.prepare(torch.utils.data.DataLoader([1]))
    with pytest.raises(RuntimeMisuse, match="prepared DataLoader cannot travel"):
        context.encoders[type(loader)](loader)


def rates_on_ranks():
    import torch
    from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau

    from notebook_accel import Accelerator

    accelerator = Accelerator(cpu=True)
    said = {}

    def rates(make, steps, *args):
        model = torch.nn.Linear(1, 1)
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        model, optimizer, scheduler = accelerator.prepare(model, inner, make(inner))
        seen = []
        for _ in range(steps):
            accelerator.backward(model(torch.ones(1, 1)).sum())
            optimizer.step()
            scheduler.step(*args)
            seen.append(round(inner.param_groups[0]["lr"], 3))
        return seen

    said["lambda"] = rates(lambda inner: LambdaLR(inner, lambda step: 0.5**step), 2)
    said["plateau"] = rates(lambda inner: ReduceLROnPlateau(inner, factor=0.1, patience=1), 4, 1.0)
    said["one_cycle"] = rates(lambda inner: OneCycleLR(inner, max_lr=1.0, total_steps=8), 5)
    return said


def test_schedules_move_once_a_rank_except_for_plateaus_and_never_past_their_end() -> None:
    """OS01 (plateaus) and OS03 (OneCycle)."""
    for said in run_ranks(rates_on_ranks, 2):
        assert said["lambda"] == [0.25, 0.062]
        assert said["plateau"] == [1, 1, 0.1, 0.1]
        assert said["one_cycle"][:3] == [0.972, 0.556, 0.077]
        assert said["one_cycle"][3] == said["one_cycle"][4]


def test_on_one_process_plateaus_and_cycles_are_torch_s_own() -> None:
    accelerator, model, inner, optimizer = dressed(lr=1.0)
    plateau = accelerator.prepare(ReduceLROnPlateau(inner, factor=0.1, patience=1))
    for _ in range(4):
        plateau.step(1.0)
    assert inner.param_groups[0]["lr"] == pytest.approx(0.1)
    cycle = accelerator.prepare(OneCycleLR(inner, max_lr=1.0, total_steps=2))
    for _ in range(4):
        accelerator.backward(model(torch.ones(1, 1)).sum())
        optimizer.step()
        cycle.step()
    assert cycle.last_epoch == 1

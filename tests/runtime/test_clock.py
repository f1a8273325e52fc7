"""Micro-batches become optimizer steps: when gradients meet, and what a loss weighs."""

from __future__ import annotations

import re

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from notebook_accel import Accelerator
from notebook_accel.config.accumulation import GradientAccumulationPlugin
from notebook_accel.config.words import kind_of
from notebook_accel.errors import RuntimeMisuse


class Stream(IterableDataset):
    def __init__(self, num: int) -> None:
        self.num = num

    def __iter__(self):
        return iter(torch.arange(self.num).float().view(-1, 1))


def parts(steps: int, lr: float = 0.1):
    accelerator = Accelerator(gradient_accumulation_steps=steps, cpu=True)
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return accelerator, *accelerator.prepare(model, optimizer)


def loader_of(accelerator: Accelerator, num: int, stream: bool = False) -> DataLoader:
    data = Stream(num) if stream else torch.arange(num).float().view(-1, 1)
    return accelerator.prepare(DataLoader(data, batch_size=1))


@pytest.mark.parametrize("stream", [False, True])
def test_gradients_meet_when_the_window_is_full_and_at_the_last_batch(stream: bool) -> None:
    accelerator, model, _ = parts(2)
    syncs = []
    for _ in loader_of(accelerator, 5, stream):
        with accelerator.accumulate(model):
            syncs.append(accelerator.sync_gradients)
    assert syncs == [False, True, False, True, True]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("zero", ["first", "last"])
def test_accumulation_equals_the_big_batch_also_in_a_short_last_window(
    stream: bool, clip: float | None, zero: str
) -> None:
    accelerator, model, optimizer = parts(2)
    weights = []
    for x in loader_of(accelerator, 5, stream):
        with accelerator.accumulate(model):
            if zero == "first":
                optimizer.zero_grad()
            accelerator.backward((model(x) - 1).square().mean())
            if clip is not None and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            if zero == "last":
                optimizer.zero_grad()
        weights.append(model.weight.item())

    torch.manual_seed(0)
    plain = torch.nn.Linear(1, 1)
    sgd = torch.optim.SGD(plain.parameters(), lr=0.1)
    expected = []
    for big in (torch.tensor([[0.0], [1.0]]), torch.tensor([[2.0], [3.0]]), torch.tensor([[4.0]])):
        sgd.zero_grad()
        (plain(big) - 1).square().mean().backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(plain.parameters(), clip)
        sgd.step()
        expected.append(plain.weight.item())
    assert [weights[1], weights[3], weights[4]] == pytest.approx(expected, abs=1e-6)


def test_clipping_inside_a_window_only_measures() -> None:
    accelerator, model, _ = parts(2)
    for x in loader_of(accelerator, 2):
        with accelerator.accumulate(model):
            accelerator.backward(model(x + 5).sum() * 100)
            norm = accelerator.clip_grad_norm_(model.parameters(), 0.1)
            accelerator.clip_grad_value_(model.parameters(), 0.1)
            left = torch.nn.utils.get_total_norm([one.grad for one in model.parameters()])
            if accelerator.sync_gradients:
                assert left <= 0.1 + 1e-6
            else:
                assert left == norm > 100


def test_two_models_in_separate_blocks_each_have_their_window() -> None:
    accelerator, one, _ = parts(2)
    other = accelerator.prepare(torch.nn.Linear(1, 1))
    syncs: dict[str, list[bool]] = {"one": [], "other": [], "both": []}
    for _ in loader_of(accelerator, 4):
        with accelerator.accumulate(one):
            syncs["one"].append(accelerator.sync_gradients)
        with accelerator.accumulate(other):
            syncs["other"].append(accelerator.sync_gradients)
        with accelerator.accumulate(one, other):
            syncs["both"].append(accelerator.sync_gradients)
    assert all(seen == [False, True, False, True] for seen in syncs.values())


@pytest.mark.parametrize("kind", [list, tuple])
def test_models_given_in_a_list_made_for_each_batch_have_one_window(kind: type) -> None:
    accelerator, one, _ = parts(2)
    other = accelerator.prepare(torch.nn.Linear(1, 1))
    syncs = []
    for _ in loader_of(accelerator, 4):
        with accelerator.accumulate(kind([one, other])):
            syncs.append(accelerator.sync_gradients)
    assert syncs == [False, True, False, True]


@pytest.mark.parametrize("given", [None, "model", 5, print], ids=str)
def test_what_is_no_model_cannot_be_accumulated(given: object) -> None:
    accelerator, *_ = parts(2)
    with pytest.raises(RuntimeMisuse, match=rf"accumulate\(\) got {re.escape(kind_of(given))}"):
        accelerator.accumulate(given)


def test_alternating_optimizers_of_a_gan_clear_what_their_last_step_used() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    nets = [torch.nn.Linear(1, 1) for _ in range(2)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.0) for net in nets]
    *nets, first, second = accelerator.prepare(*nets, *optimizers)
    seen = []
    for x in loader_of(accelerator, 4):
        with accelerator.accumulate(*nets):
            for net, optimizer in zip(nets, (first, second), strict=True):
                optimizer.zero_grad()
                accelerator.backward(net(x).sum())
                optimizer.step()
            seen.append([net.weight.grad.item() for net in nets])
    assert seen == [[0, 0], [0.5, 0.5], [1, 1], [2.5, 2.5]]


def test_a_changed_number_of_steps_counts_from_the_next_window() -> None:
    accelerator, model, _ = parts(2)
    accelerator.gradient_accumulation_steps = 3
    assert accelerator.gradient_accumulation_steps == 3
    syncs = []
    for _ in loader_of(accelerator, 6):
        with accelerator.accumulate(model):
            syncs.append(accelerator.sync_gradients)
    assert syncs == [False, False, True] * 2


def test_an_interrupted_window_has_no_say_in_a_new_accelerator() -> None:
    """GA06."""
    accelerator, model, optimizer = parts(4)
    Accelerator(cpu=True)
    assert accelerator.gradient_accumulation_steps == 4
    with pytest.raises(KeyboardInterrupt), accelerator.accumulate(model):
        raise KeyboardInterrupt
    other, model, optimizer = parts(1, lr=1.0)
    before = model.weight.item()
    other.backward(model(torch.ones(1, 1)).sum())
    optimizer.step()
    assert model.weight.item() == pytest.approx(before - 1.0)
    accelerator.gradient_accumulation_steps = 3
    assert accelerator.gradient_accumulation_steps == 3


def test_two_accelerators_side_by_side_keep_their_own_settings() -> None:
    first = Accelerator(gradient_accumulation_steps=4, cpu=True)
    second = Accelerator(mixed_precision="bf16", cpu=True)
    assert (first.gradient_accumulation_steps, second.gradient_accumulation_steps) == (4, 1)
    assert (first.mixed_precision, second.mixed_precision) == ("no", "bf16")
    model, _ = first.prepare(torch.nn.Linear(1, 1)), None
    with first.accumulate(model):
        assert not first.sync_gradients
        assert second.sync_gradients


def test_an_interrupted_window_leaves_nothing_behind() -> None:
    accelerator, model, optimizer = parts(4, lr=1.0)
    x = torch.ones(1, 1)
    with pytest.raises(KeyboardInterrupt), accelerator.accumulate(model):
        accelerator.backward(model(x).sum())
        raise KeyboardInterrupt
    assert accelerator.sync_gradients
    assert model.weight.grad is None
    before = model.weight.item()
    accelerator.backward(model(x).sum() * 4)  # outside a window the divisor is the setting's
    optimizer.step()
    assert model.weight.item() == pytest.approx(before - 1.0)


def test_without_accumulate_every_step_steps() -> None:
    accelerator, model, optimizer = parts(1)
    for x in loader_of(accelerator, 3):
        optimizer.zero_grad()
        accelerator.backward(model(x).sum())
        before = model.bias.item()
        optimizer.step()
        assert model.bias.item() != before


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0, 1, 0, 1, 1]),
        ({"sync_with_dataloader": False}, [0, 1, 0, 1, 0]),
        ({"sync_each_batch": True}, [0, 1, 0, 1, 1]),
    ],
)
def test_the_plugin_says_when_gradients_meet(
    stream: bool, options: dict[str, bool], expected: list[int]
) -> None:
    """GA02."""
    plugin = GradientAccumulationPlugin(num_steps=2, **options)
    accelerator = Accelerator(gradient_accumulation_plugin=plugin, cpu=True)
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    syncs = []
    for _ in loader_of(accelerator, 5, stream):
        with accelerator.accumulate(model):
            syncs.append(accelerator.sync_gradients)
    assert syncs == expected


def test_windows_that_ignore_the_loader_run_on_into_the_next_pass() -> None:
    plugin = GradientAccumulationPlugin(num_steps=2, sync_with_dataloader=False)
    accelerator = Accelerator(gradient_accumulation_plugin=plugin, cpu=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model, optimizer = accelerator.prepare(model, optimizer)
    loader = loader_of(accelerator, 3)
    seen = []
    for _ in range(2):
        for x in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(x).sum())
                if accelerator.sync_gradients:
                    seen.append(model.weight.grad.item())
                optimizer.step()
                optimizer.zero_grad()
    assert seen == [0.5, 1.0, 1.5]  # (0+1)/2, (2+0)/2, (1+2)/2


def test_an_adjusted_schedule_moves_as_often_as_there_were_micro_batches() -> None:
    for adjust, expected in ((None, [1, 2, 3]), (True, [2, 4, 5])):
        plugin = GradientAccumulationPlugin(num_steps=2, adjust_scheduler=adjust)
        accelerator = Accelerator(gradient_accumulation_plugin=plugin, cpu=True)
        assert accelerator.gradient_state.adjust_scheduler is bool(adjust)
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step)
        model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
        seen = []
        for x in loader_of(accelerator, 5):
            with accelerator.accumulate(model):
                accelerator.backward(model(x).sum())
                optimizer.step()
                schedule.step()
                if accelerator.sync_gradients:
                    seen.append(schedule.get_last_lr()[0])
        assert seen == expected


@pytest.mark.parametrize("zero", ["first", "last"])
def test_sync_driven_from_outside_keeps_micro_batches_in_either_order(zero: str) -> None:
    accelerator, model, optimizer = parts(1, lr=0.0)
    seen = []
    for k in range(4):
        accelerator.gradient_state._set_sync_gradients(k % 2 == 1)
        if zero == "first":
            optimizer.zero_grad()
        accelerator.backward(model(torch.full((1, 1), float(k))).sum())
        if accelerator.sync_gradients:
            seen.append(model.weight.grad.item())
        optimizer.step()
        if zero == "last":
            optimizer.zero_grad()
    assert seen == [1.0, 5.0]


@pytest.mark.parametrize("how", ["break", "exception"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_that_is_left_inside_a_window_leaves_nothing_to_the_next_loop(
    stream: bool, how: str
) -> None:
    accelerator, model, optimizer = parts(2, lr=0.0)
    loader = loader_of(accelerator, 4, stream)

    def loop(stop_after: int) -> list[float]:
        seen = []
        for i, x in enumerate(loader):
            with accelerator.accumulate(model):
                accelerator.backward(model(x + 1).sum())
                if accelerator.sync_gradients:
                    seen.append(model.weight.grad.item())
                optimizer.step()
                optimizer.zero_grad()
            if i + 1 == stop_after and how == "break":
                break
            if i + 1 == stop_after:
                raise KeyboardInterrupt
        return seen

    kept = []  # a notebook keeps the last traceback, and with it the loop
    try:
        loop(3)
    except KeyboardInterrupt as error:
        kept.append(error)
    assert loop(9) == [1.5, 3.5]
    assert loop(9) == [1.5, 3.5]


def test_after_a_loop_that_is_left_inside_a_window_a_bare_step_steps() -> None:
    accelerator, model, optimizer = parts(4, lr=1.0)
    for x in loader_of(accelerator, 8):
        with accelerator.accumulate(model):
            accelerator.backward(model(x + 1).sum())
            optimizer.step()
            optimizer.zero_grad()
        break
    before = model.weight.item()
    accelerator.backward(model(torch.ones(1, 1)).sum() * 4)
    assert accelerator.sync_gradients
    optimizer.step()
    assert model.weight.item() == pytest.approx(before - 1.0)


def test_an_evaluation_inside_a_window_leaves_the_window_alone() -> None:
    accelerator, model, optimizer = parts(2, lr=0.0)
    seen = []
    for x in loader_of(accelerator, 4):
        with accelerator.accumulate(model):
            accelerator.backward(model(x + 1).sum())
            for _ in loader_of(accelerator, 3):
                break
            if accelerator.sync_gradients:
                seen.append(model.weight.grad.item())
            optimizer.step()
            optimizer.zero_grad()
    assert seen == [1.5, 3.5]


def test_the_weight_of_a_micro_batch_is_the_same_however_the_loss_is_made() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=4, cpu=True)
    one = torch.nn.Parameter(torch.tensor(2.0))
    many = torch.nn.Parameter(torch.ones(3))
    optimizer = accelerator.prepare(torch.optim.SGD([one, many], lr=1.0))
    for _ in range(4):  # a leaf itself: its gradient must not become the next one's weight
        with accelerator.accumulate():
            accelerator.backward(one)
            accelerator.backward(one.double() + many.double().sum(), retain_graph=True)
            accelerator.backward(one + many[0].detach())
            accelerator.backward(one.reshape(1))
            if accelerator.sync_gradients:
                assert one.grad.item() == 4.0
                assert many.grad.tolist() == [1.0] * 3
            optimizer.step()
    assert one.item() == -2.0

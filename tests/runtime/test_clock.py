"""Micro-batches become optimizer steps: when gradients meet, and what a loss weighs."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from notebook_accel import Accelerator


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

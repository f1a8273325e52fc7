"""What ranks really hold, on 2 and 4 of them, is what was told beforehand: byte by byte."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from notebook_accel import DDP, FSDP, Accelerator, Pipeline, TensorParallel, notebook_launcher
from notebook_accel.config.budget import Training, budget
from notebook_accel.strategies.held import held
from notebook_accel.strategies.measure import measure
from tests.strategies.test_measure import Net

BATCH = (torch.zeros(4, 3, dtype=torch.long), torch.zeros(4, 3, dtype=torch.long))


def loss_fn(logits_BTV: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())


def holds(wish: Any) -> tuple[int, ...]:
    """Train one step and give the bytes of parameters, gradients and optimizer states."""
    accelerator = Accelerator(cpu=True, strategy=wish)
    torch.manual_seed(0)
    model = Net(width=12)
    optimizer = torch.optim.AdamW(model.parameters())
    model, prepared = accelerator.prepare(model, optimizer)
    accelerator.forward_backward(model, BATCH, loss_fn)
    prepared.step()
    here = held([accelerator.unwrap_model(model)], [prepared.inner])
    return here.parameters, here.gradients, here.optimizer


def all_hold(wishes: list[Any]) -> list[tuple[int, ...]]:
    return [holds(wish) for wish in wishes]


def told(wish: Any, num_ranks: int) -> tuple[int, ...]:
    found = budget(wish, measure(Net(width=12)), Training(num_ranks))
    assert found is not None
    return astuple(found)[:3]


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_parameters_gradients_and_states_are_as_told(num_ranks: int) -> None:
    wishes: list[Any] = [
        DDP(),
        FSDP(),
        FSDP(reshard_after_forward=False, activation_checkpointing=True),
        TensorParallel(size=2),
        *([FSDP(replicas=2)] if num_ranks == 4 else []),
    ]
    run = notebook_launcher(all_hold, (wishes,), num_ranks, device="cpu", timeout_s=100)
    for n, wish in enumerate(wishes):
        assert max(rank[n] for rank in run) == told(wish, num_ranks), wish


def test_a_played_rank_holds_what_a_real_one_does() -> None:
    wishes = [FSDP(), TensorParallel(size=2)]
    real = notebook_launcher(all_hold, (wishes,), 4, device="cpu", timeout_s=100)
    played = notebook_launcher(all_hold, (wishes,), 4, device="fake:3", timeout_s=100)
    assert played[0] == real[3]


def test_a_rank_of_a_pipeline_holds_its_own_stage() -> None:
    wish = Pipeline(stages=2)
    run = notebook_launcher(holds, (wish,), 2, device="cpu", timeout_s=100)
    parameters, *rest = max(tuple(rank) for rank in run)
    assert rest == list(told(wish, 2)[1:])
    stands_for_others = 4 * len(list(Net().parameters()))  # one number for each that is not here
    assert 0 <= parameters - told(wish, 2)[0] <= stands_for_others


def test_what_is_met_twice_counts_once_and_nothing_is_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    here = held([model, model], [])
    assert (here.parameters, here.gradients, here.optimizer, here.whole) == (64, 0, 0, 64)


def peak(wish: Any) -> int:
    """The most memory that a rank has during its third update, in bytes."""
    ctypes.CDLL(None).mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD: what is freed goes back
    accelerator = Accelerator(cpu=True, strategy=wish)
    model = Net(256, 6, 1000)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    model, optimizer = accelerator.prepare(model, optimizer)
    words = torch.randint(0, 1000, (8, 128))
    for step in range(3):
        if step == 2:
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
        accelerator.forward_backward(model, (words, words), loss_fn)
        optimizer.step()
        optimizer.zero_grad()
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process's peak")
def test_the_peak_of_a_process_differs_between_strategies_as_told() -> None:
    """What is the same under all of them (torch itself, libraries, gaps) is not told: 20 %."""
    wishes = (DDP(), FSDP(activation_checkpointing=True))
    words = torch.zeros(8, 128, dtype=torch.long)
    sizes = measure(Net(256, 6, 1000), (words, words), "no", loss_fn)
    peaks, totals = [], []
    for wish in wishes:
        run = notebook_launcher(peak, (wish,), 2, device="cpu", timeout_s=100)
        peaks.append(run[0])
        found = budget(wish, sizes, Training(2))
        assert found is not None
        totals.append(found.total)
    assert peaks[0] - peaks[1] == pytest.approx(totals[0] - totals[1], rel=0.2)

"""How many samples a run has seen: ranks that read the same data count once."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import Accelerator, notebook_launcher
from notebook_accel.config.wishes import DDP, Pipeline, Strategy, TensorParallel
from tests.support.nets import PLAN, Net


def one_pass(wish: Strategy) -> None:
    accelerator = Accelerator(cpu=True, strategy=wish)
    model = Net()
    data = DataLoader(TensorDataset(torch.ones(8, 4), torch.ones(8, 1)), batch_size=2)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data
    )
    for inputs, targets in loader:
        accelerator.forward_backward(model, (inputs, targets), nn.functional.mse_loss)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("wish", [DDP(), TensorParallel(size=2, plan=PLAN), Pipeline(stages=2)])
def test_samples_that_ranks_read_together_count_once(wish: Strategy) -> None:
    run = notebook_launcher(one_pass, (wish,), 2, device="cpu", timeout_s=100)
    assert sum(rank.samples for rank in run.record.story.ranks) == 8

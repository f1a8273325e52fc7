"""``forward_backward`` does what a forward and ``backward`` do, under every strategy."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import Accelerator, notebook_launcher
from notebook_accel.config.wishes import DDP, FSDP, SingleDevice, Strategy, TensorParallel
from tests.support.nets import PLAN, Net

WAYS: dict[str, tuple[int, Strategy]] = {
    "one device": (1, SingleDevice()),
    "ddp": (2, DDP()),
    "fsdp": (2, FSDP()),
    "tensor": (2, TensorParallel(plan=PLAN)),
}


def train(strategy: Strategy, precision: str, together: bool) -> list[float]:
    accelerator = Accelerator(
        mixed_precision=precision, gradient_accumulation_steps=2, cpu=True, strategy=strategy
    )
    torch.manual_seed(0)
    x = torch.randn(28, 4)
    model = Net()
    loader = DataLoader(
        TensorDataset(x, x[:, :1].tanh()), batch_size=4 // accelerator._engine.layout.data_size
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            if together:
                loss = accelerator.forward_backward(
                    model, (inputs, targets), nn.functional.mse_loss
                )
                assert not loss.requires_grad
            else:
                loss = nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
            losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
    state = accelerator.get_state_dict(model)
    return [*losses, *(value for one in state.values() for value in one.flatten().tolist())]


def trains_both_ways(strategy: Strategy) -> list[tuple[list[float], list[float]]]:
    return [
        (train(strategy, precision, True), train(strategy, precision, False))
        for precision in ("no", "bf16", "fp16")
    ]


@pytest.mark.parametrize("name", WAYS)
def test_forward_and_backward_in_one_call_is_both(name: str) -> None:
    size, strategy = WAYS[name]
    run = notebook_launcher(trains_both_ways, (strategy,), size, device="cpu", timeout_s=200)
    for together, apart in run[0]:
        assert together == pytest.approx(apart, abs=1e-6)
    assert run.history["loss"]

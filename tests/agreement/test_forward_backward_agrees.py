"""``forward_backward`` does what a forward and ``backward`` do, under every strategy."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import Accelerator, notebook_launcher
from notebook_accel.config.wishes import (
    DDP,
    FSDP,
    Pipeline,
    SingleDevice,
    Strategy,
    TensorParallel,
)
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


class Scaled(Net):
    """A model of two inputs, as one that reads words and a mask."""

    def forward(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x) * factor
        return self.leave(x)


def calls_it(strategy: Strategy) -> dict[str, list[float]]:
    accelerator = Accelerator(cpu=True, strategy=strategy)
    x = torch.linspace(-1, 1, 16).view(4, 4)
    factor, y = x[:, 2:3] + 2, x[:, :1].tanh()
    told = {}
    for name, inputs in {
        "in order": (x, factor),
        "a loader's list": [x, factor],
        "by name": {"x": x, "factor": factor},
        "by name, turned round": {"factor": factor, "x": x},
    }.items():
        torch.manual_seed(0)
        model = accelerator.prepare(Scaled())
        loss = accelerator.forward_backward(model, (inputs, y), nn.functional.mse_loss)
        norm = accelerator.clip_grad_norm_(model.parameters(), 1e9)
        with torch.no_grad():
            evaluated = [model.eval()(factor=factor, x=x), model(x, factor)]
        told[name] = [loss.item(), norm.item(), *(one.sum().item() for one in evaluated)]
        accelerator.free_memory()
    return told


@pytest.mark.parametrize("name", ["one device", "ddp", "stages"])
def test_a_model_of_several_inputs_is_called_by_name_or_in_order(name: str) -> None:
    alone = calls_it(SingleDevice())["in order"]
    assert alone[1] > 0.1
    size, strategy = {**WAYS, "stages": (2, Pipeline())}[name]
    for told in notebook_launcher(calls_it, (strategy,), size, device="cpu"):
        assert told == {way: pytest.approx(alone, rel=1e-5) for way in told}

"""What forwards write into buffers is the first reader's on all ranks, under every strategy.

As DDP has it: statistics of batches are those of the first rank, in evaluation and in the next
training forward.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest
import torch
from torch import nn

from notebook_accel import Accelerator, Megatron, notebook_launcher
from notebook_accel.config.deepspeed import DeepSpeed
from notebook_accel.config.environment import patch_environment
from notebook_accel.config.wishes import DDP, FSDP, Pipeline, Strategy, TensorParallel
from tests.support.nets import PLAN, Net

STAGES = Pipeline(num_microbatches=1)
WAYS: dict[int, dict[str, Strategy]] = {
    2: {
        "fsdp": FSDP(),
        "fsdp in one part": FSDP(auto_wrap_policy="no_wrap"),
        "fsdp recomputing": FSDP(activation_checkpointing=True),
    },
    4: {
        "stages in copies": STAGES,
        "stages in parts": Pipeline(num_microbatches=1, inside=FSDP()),
        "divided layers": TensorParallel(size=2, plan=PLAN),
        "divided layers in copies": TensorParallel(size=2, plan=PLAN, data=FSDP(replicas=2)),
        "megatron": Megatron(pp_degree=2, num_micro_batches=1),
    },
}


class Remembering(Net):
    """Two buffers that training changes: one counts in evaluation, one in training."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        if self.training:
            x = x * self.seen.clone()
            self.seen.lerp_(x.detach().abs().max(), 0.5)
        return super().forward(x)


def remembers(strategy: Strategy, accumulate: int) -> list[float]:
    """Give the losses of training, and the outputs of the trained model on data for all."""
    accelerator = Accelerator(cpu=True, strategy=strategy, gradient_accumulation_steps=accumulate)
    torch.manual_seed(0)
    model = Remembering()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    layout = accelerator._engine.layout
    x = torch.randn(6, 8, 4) * torch.arange(1.0, 9.0)[:, None] / 8  # readers see other statistics
    told = []
    for rows in x:
        with accelerator.accumulate(model):
            own = rows.chunk(layout.data_size)[layout.data_rank]
            if isinstance(strategy, (Pipeline, Megatron)):
                batch = (own, own[:, :1].tanh())
                loss = accelerator.forward_backward(model, batch, nn.functional.mse_loss)
            else:
                loss = nn.functional.mse_loss(model(own), own[:, :1].tanh())
                accelerator.backward(loss)
            told.append(accelerator.reduce(loss.detach(), "mean").item())
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        return [*told, *model(x[0]).flatten().tolist()]


def each(ways: dict[str, Strategy], accumulates: tuple[int, ...]) -> dict[Any, list[float]]:
    return {(name, k): remembers(one, k) for name, one in ways.items() for k in accumulates}


def agree(ways: dict[str, Strategy], size: int, accumulates: tuple[int, ...] = (1, 2)) -> None:
    expected = notebook_launcher(each, ({"ddp": DDP()}, accumulates), 2, device="cpu")
    assert expected[0] == expected[1]
    for found in notebook_launcher(each, (ways, accumulates), size, device="cpu", timeout_s=300):
        for (name, k), numbers in found.items():
            wanted = expected[0]["ddp", k]
            assert numbers == pytest.approx(wanted, abs=1e-5, rel=1e-4), (name, k)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_buffers_are_those_of_the_first_reader_as_under_ddp(size: int) -> None:
    agree(WAYS[size], size)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None,
    reason="deepspeed is not installed: pip install 'notebook-accel[deepspeed]'",
)
def test_buffers_under_zero_are_those_of_the_first_reader() -> None:
    with patch_environment(ds_accelerator="cpu", pytorch_nvml_based_cuda_check="1"):
        importlib.import_module("deepspeed")  # once: ranks are forks of this process
    agree({f"stage {one}": DeepSpeed(zero_stage=one) for one in (1, 2, 3)}, 2, (1,))

"""fp8 on GPUs: native from compute capability 8.9, emulated below. Skipped where there is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import notebook_accel
from notebook_accel import FSDP, Accelerator, notebook_launcher
from notebook_accel.config.installed import is_installed
from notebook_accel.launch import devices

GPUS = [device for device in devices.accelerators() if device.kind == "cuda"]
HAVE_UNIT = [gpu for gpu in GPUS if gpu.capability is not None and gpu.capability >= (8, 9)]
pytestmark = [
    pytest.mark.skipif(not GPUS, reason="no CUDA GPU on this machine"),
    pytest.mark.skipif(
        not is_installed("torchao"), reason="needs torchao: pip install 'notebook-accel[fp8]'"
    ),
]


@pytest.fixture(scope="module", autouse=True)
def no_forkserver_is_left() -> Any:
    yield
    notebook_accel.shutdown()


class Net(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.enter = nn.Linear(16, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.leave = nn.Linear(width, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = x + block(x).tanh()
        return self.leave(x)


def train(precision: str, strategy: Any = None, compiler: str | None = None) -> dict[str, Any]:
    accelerator = Accelerator(mixed_precision=precision, strategy=strategy, dynamo_backend=compiler)
    torch.manual_seed(0)
    x, y = torch.randn(64, 16), torch.randn(64, 16)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer = accelerator.prepare(model, optimizer)
    size, rank = accelerator.num_processes, accelerator.process_index
    mine = slice(64 * rank // size, 64 * (rank + 1) // size)
    x, y = x[mine].to(accelerator.device), y[mine].to(accelerator.device)
    losses = []
    for _ in range(10):
        loss = nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss, "mean").item())
    bits = accelerator._engine.precision.eight_bits
    return {"losses": losses, "emulated": bits is not None and bits.is_emulated}


def test_fp8_trains_as_bf16_does_and_the_unit_is_used_where_there_is_one() -> None:
    plain = notebook_launcher(train, ("bf16",), 1, device="cuda")[0]
    found = notebook_launcher(train, ("fp8",), 1, device="cuda")[0]
    assert found["losses"] == pytest.approx(plain["losses"], rel=3e-2, abs=3e-2)
    assert found["losses"] != plain["losses"]
    assert found["emulated"] == (GPUS[0] not in HAVE_UNIT)


@pytest.mark.slow
def test_fp8_compiles() -> None:
    plain = notebook_launcher(train, ("fp8",), 1, device="cuda")[0]
    found = notebook_launcher(train, ("fp8", None, "inductor"), 1, device="cuda")[0]
    assert found["losses"] == pytest.approx(plain["losses"], rel=3e-2, abs=3e-2)


@pytest.mark.skipif(len(GPUS) < 2, reason=f"needs two CUDA GPUs, this machine has {len(GPUS)}")
def test_shards_are_gathered_in_8_bits_over_nccl() -> None:
    alone = notebook_launcher(train, ("fp8",), 1, device="cuda")[0]
    found = notebook_launcher(train, ("fp8", FSDP()), 2, device="cuda")[0]
    assert found["losses"] == pytest.approx(alone["losses"], rel=3e-2, abs=3e-2)

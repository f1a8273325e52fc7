"""Every strategy equals the single device: one curve, one gradient norm, the same parameters.

Every way trains on batches of 8 rows: so many ranks x so many micro-batches x so many rows.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import Accelerator, notebook_launcher
from notebook_accel.config.handlers import GradScalerKwargs
from notebook_accel.config.megatron import Megatron
from notebook_accel.config.wishes import FSDP, Pipeline, SingleDevice, Strategy, TensorParallel
from tests.support.nets import PLAN, Net

pytestmark = pytest.mark.timeout(400)  # the first test pays for all

STRATEGIES: dict[str, Strategy] = {
    "fsdp": FSDP(),
    "fsdp, gradients and states only": FSDP(reshard_after_forward=False),
    "fsdp by size": FSDP(auto_wrap_policy="size_based_wrap", min_num_params=50),
    "fsdp in one part": FSDP(auto_wrap_policy="no_wrap"),
    "fsdp offloaded": FSDP(cpu_offload=True),
    "fsdp recomputing": FSDP(activation_checkpointing=True),
    "fsdp in copies": FSDP(replicas=2),
    "tensor": TensorParallel(size=2, plan=PLAN),
    "tensor, data in copies": TensorParallel(size=2, plan=PLAN, data=FSDP(replicas="machines")),
}
SIZES = (2, 4)
ACCUMULATIONS = (1, 2)
PRECISIONS = {"no": 1e-5, "bf16": 3e-2, "fp16": 5e-3}
CLIPS = (0.1, 1e9)
NUM_ROWS = (24, 28)  # 28: the last window holds 4 rows
EPOCHS = 2


def train(
    strategy: Strategy, accumulate: int, precision: str, clip: float, num_rows: int
) -> list[float]:
    """Give losses and gradient norms of all updates, then the parameters."""
    accelerator = Accelerator(
        mixed_precision=precision,
        gradient_accumulation_steps=accumulate,
        cpu=True,
        kwargs_handlers=[GradScalerKwargs(init_scale=256.0)],
        strategy=strategy,
    )
    torch.manual_seed(0)
    x = torch.randn(num_rows, 4)
    y = (x[:, :1] + x[:, 1:2]).tanh()
    torch.manual_seed(accelerator.process_index)  # ranks begin alike although they built apart
    model = Net()
    batch_size = 8 // accumulate // accelerator._engine.layout.data_size
    loader = DataLoader(TensorDataset(x, y), batch_size=batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses, norms, window = [], [], []
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                if isinstance(strategy, (Pipeline, Megatron)):
                    batch = (inputs, targets)
                    loss = accelerator.forward_backward(model, batch, nn.functional.mse_loss)
                else:
                    loss = nn.functional.mse_loss(model(inputs), targets)
                    accelerator.backward(loss)
                window.append(accelerator.reduce(loss, "mean").item())
                if accelerator.sync_gradients:
                    norms.append(accelerator.clip_grad_norm_(model.parameters(), clip).item())
                    losses.append(sum(window) / len(window))
                    window.clear()
                optimizer.step()
    state = accelerator.get_state_dict(model)
    return [*losses, *norms, *(v for one in state.values() for v in one.flatten().tolist())]


SETTINGS = [*itertools.product(ACCUMULATIONS, PRECISIONS, CLIPS, NUM_ROWS)]
FEW = [(1, "no", 0.1, 24), (2, "bf16", 0.1, 28), (2, "fp16", 1e9, 24)]


def settings(name: str, size: int) -> list[tuple]:
    """Give all settings where they matter most, fewer where only the number of ranks differs."""
    if name == "fsdp" and size == 2:
        return SETTINGS
    return (
        FEW
        if size == 2 or name in ("fsdp", "fsdp in copies", "tensor, data in copies")
        else FEW[:1]
    )


def cases(size: int) -> list[tuple]:
    """Give (name, accumulation, precision, clip, rows) of what ``size`` ranks can do alike."""
    return [
        (name, *setting)
        for name in STRATEGIES
        for setting in settings(name, size)
        if 8 % (size * setting[0]) == 0
        # A short last window must have 4 rows on any number of ranks.
        and (setting[3] == 24 or 8 // setting[0] <= 4)
    ]


def trains_every_way() -> dict[tuple, list[float]]:
    size = Accelerator(cpu=True).num_processes
    if size == 1:
        return {setting: train(SingleDevice(), *setting) for setting in SETTINGS}
    return {(name, *rest): train(STRATEGIES[name], *rest) for name, *rest in cases(size)}


@pytest.fixture(scope="module")
def alone() -> dict[tuple, list[float]]:
    return notebook_launcher(trains_every_way, (), 1, device="cpu")[0]


@pytest.fixture(scope="module")
def sharded() -> dict[int, dict[tuple, list[float]]]:
    return {size: notebook_launcher(trains_every_way, (), size, device="cpu")[0] for size in SIZES}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_is_the_single_device(
    alone: dict, sharded: dict, name: str, size: int
) -> None:
    mine = [case for case in cases(size) if case[0] == name]
    assert mine
    for case in mine:
        tolerance = PRECISIONS[case[2]]
        expected = pytest.approx(alone[case[1:]], abs=tolerance, rel=tolerance)
        assert sharded[size][case] == expected, case

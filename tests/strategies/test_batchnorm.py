"""Synchronized batch statistics on CPU ranks equal one process with the whole batch."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from notebook_accel import Accelerator, notebook_launcher
from notebook_accel.config.wishes import FSDP, Strategy, TensorParallel
from notebook_accel.strategies.batchnorm import CPUSyncBatchNorm, let_batch_norms_meet
from tests.support.ranks import run_ranks


def trains_with_batch_norm():
    import copy
    import pickle

    import torch
    from torch import nn

    from notebook_accel import Accelerator

    def train(momentum, affine, rows, precision="no", dims=1):
        accelerator = Accelerator(cpu=True, mixed_precision=precision)
        size, rank = accelerator.num_processes, accelerator.process_index
        torch.manual_seed(0)
        norm = (nn.BatchNorm1d, nn.BatchNorm2d)[dims - 1](3, momentum=momentum, affine=affine)
        first = nn.Linear(4, 3) if dims == 1 else nn.Conv2d(4, 3, 3, padding=1)
        model = nn.Sequential(first, norm, nn.Tanh())
        if size > 1:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        x = torch.randn(rows, 4, *([5, 5] if dims == 2 else [])) * 3 + (
            100 if precision == "no" else 0
        )
        y = torch.randn(rows, 3, *([5, 5] if dims == 2 else []))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = accelerator.prepare(model, optimizer)
        mine = slice(rank * rows // size, (rank + 1) * rows // size)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = (model(x[mine]) - y[mine]).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            losses.append(accelerator.reduce(loss, "mean").item())
        own = accelerator.unwrap_model(model, keep_fp32_wrapper=False)
        own.eval()
        losses.append(own(x).square().mean().item())
        state = [v for one in own.state_dict().values() for v in one.float().flatten().tolist()]
        kinds = [
            type(one).__name__
            for one in (own[1], copy.deepcopy(own)[1], pickle.loads(pickle.dumps(own))[1])
        ]
        return {"losses": losses, "state": state, "kinds": kinds}

    return {
        "plain": train(0.1, True, 8),
        "cumulative": train(None, True, 8),
        "no parameters": train(0.1, False, 8),
        "images": train(0.1, True, 4, dims=2),
        "one row a rank": train(0.1, True, 2),
        "bf16": train(0.1, True, 8, "bf16"),
    }


@pytest.fixture(scope="module")
def runs() -> dict[int, dict]:
    return {n: run_ranks(trains_with_batch_norm, n)[-1] for n in (1, 2)}


@pytest.mark.parametrize(
    "name", ["plain", "cumulative", "no parameters", "images", "one row a rank", "bf16"]
)
def test_two_synchronized_ranks_equal_one_process(runs: dict, name: str) -> None:
    one, two = runs[1][name], runs[2][name]
    tolerance = 2e-2 if name == "bf16" else 1e-4
    assert two["losses"] == pytest.approx(one["losses"], abs=tolerance)
    assert two["state"] == pytest.approx(one["state"], abs=tolerance, rel=1e-3)


def test_a_layer_travels_as_torch_s_own(runs: dict) -> None:
    assert runs[2]["plain"]["kinds"] == ["CPUSyncBatchNorm", "SyncBatchNorm", "SyncBatchNorm"]


def test_a_synchronized_layer_alone_is_plain_batch_norm() -> None:
    torch.manual_seed(0)
    plain = nn.BatchNorm1d(3)
    layer = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain))
    let_batch_norms_meet(layer, torch.device("cpu"))
    assert type(layer) is CPUSyncBatchNorm
    x = torch.randn(5, 3)
    for mode in (True, False):
        layer.train(mode)
        plain.train(mode)
        assert torch.equal(layer(x), plain(x))
    assert type(pickle.loads(pickle.dumps(layer))) is nn.SyncBatchNorm


class Divided(nn.Module):
    """Layers that can be divided over ranks around one whose statistics are of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.down(self.up(x).tanh()))


def trains_divided(wish: Strategy | None) -> list[float]:
    accelerator = Accelerator(cpu=True, strategy=wish)
    torch.manual_seed(0)
    model = Divided()
    x, y = torch.randn(4, 4) * 3 + 10, torch.randn(4, 3)  # few rows: variances tell how many
    readers, reader = accelerator._engine.layout.data_size, accelerator._engine.layout.data_rank
    if readers > 1:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    losses = []
    for _ in range(3):
        mine = slice(reader * 4 // readers, (reader + 1) * 4 // readers)
        loss = (model(x[mine]) - y[mine]).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss, "mean").item())
    state = accelerator.get_state_dict(model)
    return [*losses, *(v for one in state.values() for v in one.float().flatten().tolist())]


def every_layout() -> dict[str, Any]:
    if Accelerator(cpu=True).num_processes == 1:
        return {"alone": trains_divided(None)}
    plan = {"up": "colwise", "down": "rowwise"}
    return {
        "two readers of two ranks each": trains_divided(TensorParallel(size=2, plan=plan)),
        "copies of shards": trains_divided(FSDP(replicas=2)),
        "copies of what is divided": trains_divided(
            TensorParallel(size=2, plan=plan, data=FSDP(replicas=2))
        ),
    }


def test_statistics_are_those_of_all_readers_and_count_each_row_once() -> None:
    alone = notebook_launcher(every_layout, (), 1, device="cpu")[0]["alone"]
    for name, found in notebook_launcher(every_layout, (), 4, device="cpu")[0].items():
        assert found == pytest.approx(alone, abs=1e-5), name

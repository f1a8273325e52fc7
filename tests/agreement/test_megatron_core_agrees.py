"""A model of megatron-core's layers equals one of torch's, and goes on from its checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from notebook_accel import Accelerator, Megatron, SingleDevice, notebook_launcher
from notebook_accel.config.wishes import Strategy
from notebook_accel.errors import Explained

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
CORE = Megatron(tp_degree=2, layers="core", gradient_clipping=0.1)


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(16, 8)
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 12)
        self.down = nn.Linear(12, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(self.norm(self.words(ids))).tanh())


def of_cores_layers() -> nn.Module:
    from megatron.core.model_parallel_config import ModelParallelConfig
    from megatron.core.tensor_parallel.layers import (
        ColumnParallelLinear,
        RowParallelLinear,
        VocabParallelEmbedding,
    )

    config = ModelParallelConfig(use_cpu_initialization=True, gradient_accumulation_fusion=False)
    made: dict[str, Any] = {"config": config, "init_method": nn.init.xavier_normal_}

    class Core(Dense):
        def __init__(self) -> None:
            super().__init__()
            self.words = VocabParallelEmbedding(16, 8, **made)
            self.up = ColumnParallelLinear(8, 12, gather_output=False, **made)
            self.down = RowParallelLinear(
                12, 1, bias=True, input_is_parallel=True, skip_bias_add=False, **made
            )

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.down(self.up(self.norm(self.words(ids)))[0].tanh())[0]

    return Core()


class Run:
    def __init__(self, strategy: Strategy, precision: str) -> None:
        self.accelerator = Accelerator(cpu=True, strategy=strategy, mixed_precision=precision)
        self.clips = isinstance(strategy, SingleDevice)
        torch.manual_seed(self.accelerator.data_parallel_rank)
        model = of_cores_layers() if isinstance(strategy, Megatron) else Dense()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)

    def learn(self) -> list[float]:
        """Give losses and norms of three updates, each on 8 rows over all readers."""
        ids = torch.arange(8)
        readers = self.accelerator._engine.layout.data_size
        mine = ids.chunk(readers)[self.accelerator.data_parallel_rank]
        numbers = []
        for _ in range(3):
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(mine), mine[:, None] / 8)
            self.accelerator.backward(loss)
            bound = 0.1 if self.clips else 1e9  # Megatron's wish clips by itself
            norm = self.accelerator.clip_grad_norm_(self.model.parameters(), bound)
            self.optimizer.step()
            numbers += [self.accelerator.reduce(loss.detach(), "mean").item(), norm.item()]
        return numbers


def trains_and_saves(strategy: Strategy, folder: Path) -> list[float]:
    run = Run(strategy, "no")
    run.learn()
    run.accelerator.save_state(folder)
    return run.learn()


def goes_on(strategy: Strategy, folder: Path, other: Path) -> list[list[float]]:
    run = Run(strategy, "no")
    run.accelerator.load_state(folder)
    once = run.learn()
    run.accelerator.load_state(folder)
    run.accelerator.save_state(other)
    return [once, run.learn(), [run.accelerator.tensor_parallel_rank]]


@pytest.mark.parametrize("size", [2, 4])
def test_a_model_of_its_layers_goes_on_where_torchs_was_and_back(size: int, tmp_path: Path) -> None:
    pytest.importorskip("megatron.core", reason="pip install 'notebook-accel[megatron]'")
    here, there = tmp_path / "here", tmp_path / "there"
    expected = notebook_launcher(trains_and_saves, (SingleDevice(), here), 1, device="cpu")[0]
    run = notebook_launcher(goes_on, (CORE, here, there), size, device="cpu", timeout_s=200)
    for rank, (once, twice, place) in enumerate(run):
        assert once == pytest.approx(expected, abs=1e-5)
        assert twice == once
        assert place == [rank % 2]
    back = notebook_launcher(goes_on, (SingleDevice(), there, here), 1, device="cpu")[0]
    assert back[0] == pytest.approx(expected, abs=1e-5)


def prepares() -> list[str]:
    told = []
    for wish in (CORE, replace(CORE, tp_degree=4)):
        try:
            Accelerator(cpu=True, strategy=wish).prepare(Dense())
        except Explained as error:
            told.append(str(error))
    return told


def test_what_its_layers_cannot_do_is_one_error() -> None:
    pytest.importorskip("megatron.core", reason="pip install 'notebook-accel[megatron]'")
    for plain, other in notebook_launcher(prepares, (), 4, device="cpu"):
        assert 'Dense under Megatron(layers="core") has no layer of megatron-core' in plain
        assert 'leave layers="core" out' in plain
        assert "Megatron(tp_degree=4), but megatron-core was told of 2 ranks" in other
        assert "write tp_degree=2" in other

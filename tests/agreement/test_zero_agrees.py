"""DeepSpeed's ZeRO equals the single device, and goes on elsewhere as if never stopped.

Every launch trains in several ways, one after the other: DeepSpeed is imported once.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from notebook_accel import Accelerator, notebook_launcher
from notebook_accel.config.deepspeed import DeepSpeed
from notebook_accel.config.environment import patch_environment
from notebook_accel.config.handlers import GradScalerKwargs
from notebook_accel.config.wishes import DDP, FSDP, SingleDevice, Strategy
from tests.support.nets import Net

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("deepspeed") is None,
        reason="deepspeed is not installed: pip install 'notebook-accel[deepspeed]'",
    ),
]


@pytest.fixture(scope="module", autouse=True)
def deepspeed() -> None:
    """Import it once: ranks are forks of this process."""
    with patch_environment(ds_accelerator="cpu", pytorch_nvml_based_cuda_check="1"):
        importlib.import_module("deepspeed")


STAGES = (1, 2, 3)
TOLERANCE = {"no": 1e-5, "bf16": 3e-2, "fp16": 5e-3}
EPOCHS = 2
Curve = dict[str, list[float]]


def zero(stage: int, **settings: Any) -> DeepSpeed:
    """Cut up everything in stage 3, which DeepSpeed leaves whole where it is small."""
    own = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
    return DeepSpeed(zero_stage=stage, config=own if stage == 3 else None, **settings)


class Streamed(IterableDataset):  # type: ignore[type-arg]
    """Rows without a length: only the last batch tells that a window is short."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def __iter__(self) -> Any:
        return zip(self.x, self.x[:, :1].tanh(), strict=True)


def rows_of(num_rows: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(num_rows, 4)


def train(
    strategy: Strategy,
    precision: str = "no",
    accumulate: int = 1,
    clip: float = 1e9,
    streamed: bool = False,
) -> Curve:
    """Train on windows of 8 rows; with two micro-batches to a window the last one holds 4."""
    scaler = GradScalerKwargs(init_scale=256.0)
    accelerator = Accelerator(
        cpu=True,
        strategy=strategy,
        mixed_precision=precision,
        gradient_accumulation_steps=accumulate,
        kwargs_handlers=[scaler] if precision == "fp16" else None,
    )
    x = rows_of(24 if accumulate == 1 else 28)
    data: Any = Streamed(x) if streamed else TensorDataset(x, x[:, :1].tanh())
    loader = DataLoader(data, batch_size=8 // accelerator.num_processes // accumulate)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, accelerator.num_processes, 0.9)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    curve: Curve = {"loss": [], "norm": [], "rate": []}
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                norm = accelerator.clip_grad_norm_(model.parameters(), clip)
                if accelerator.sync_gradients:
                    curve["norm"].append(norm.item())
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                assert not accelerator.optimizer_step_was_skipped
            curve["loss"].append(accelerator.reduce(loss.detach(), "mean").item())
            curve["rate"].append(scheduler.get_last_lr()[0])
    state = accelerator.get_state_dict(model)
    curve["weights"] = [value for one in state.values() for value in one.flatten().tolist()]
    return curve


def train_each(ways: list[tuple[Strategy, dict[str, Any]]]) -> list[Curve]:
    return [train(strategy, **how) for strategy, how in ways]


def curves(num_ranks: int, ways: list[tuple[Strategy, dict[str, Any]]]) -> list[Curve]:
    found: list[Curve] = notebook_launcher(train_each, (ways,), num_ranks, device="cpu")[0]
    return found


@pytest.mark.parametrize("precision", TOLERANCE)
def test_every_stage_equals_one_device(precision: str) -> None:
    hows: list[dict[str, Any]] = [
        {"precision": precision, "accumulate": accumulate, "clip": clip}
        for accumulate, clip in itertools.product((1, 2), (0.1, 1e9))
    ]
    alone = curves(1, [(SingleDevice(), how) for how in hows])
    ways: list[tuple[Strategy, dict[str, Any]]] = [
        (zero(stage), how) for stage in STAGES for how in hows
    ]
    for (strategy, how), found in zip(ways, curves(2, ways), strict=True):
        expected = alone[hows.index(how)]
        for name in ("norm", "rate", "weights"):
            wide = TOLERANCE[precision] * (3 if name == "weights" else 1)
            assert found[name] == pytest.approx(expected[name], rel=wide, abs=wide), (
                strategy,
                how,
                name,
            )


def test_it_equals_one_device_on_other_ways_to_lie_and_to_read() -> None:
    alone = curves(1, [(SingleDevice(), {"clip": 0.1, "accumulate": 2, "streamed": True})])[0]
    ways: list[tuple[Strategy, dict[str, Any]]] = [
        (wish, {"clip": 0.1, "accumulate": 2, "streamed": streamed})
        for wish in (
            DeepSpeed(zero_stage=2, offload_optimizer="cpu"),
            zero(3, offload_optimizer="cpu", offload_param="cpu"),
            DeepSpeed(zero_stage=1),
        )
        for streamed in (False, True)
    ]
    for (strategy, how), found in zip(ways, curves(2, ways), strict=True):
        assert found["norm"] == pytest.approx(alone["norm"], rel=1e-5), (strategy, how)
        assert found["weights"] == pytest.approx(alone["weights"], abs=1e-5), (strategy, how)


def test_one_rank_and_four_train_alike() -> None:
    how = {"clip": 0.1}
    alone = curves(1, [(SingleDevice(), how), (DeepSpeed(zero_stage=2), how)])
    four = curves(4, [(DeepSpeed(zero_stage=2), how), (zero(3), how)])
    for found in (alone[1], *four):
        assert found["norm"] == pytest.approx(alone[0]["norm"], rel=1e-5)
        assert found["weights"] == pytest.approx(alone[0]["weights"], abs=1e-5)


WAYS: dict[str, tuple[int, Strategy]] = {
    "one device": (1, SingleDevice()),
    "ddp on 2": (2, DDP()),
    "fsdp on 2": (2, FSDP()),
    "zero 1 on 2": (2, DeepSpeed(zero_stage=1)),
    "zero 2 on 2": (2, DeepSpeed(zero_stage=2)),
    "zero 3 on 2": (2, zero(3)),
    "zero 3 on 4": (4, zero(3)),
}


class Run:
    """Two passes over 24 rows in batches of 8, on however many ranks."""

    def __init__(self, strategy: Strategy) -> None:
        self.accelerator = Accelerator(cpu=True, strategy=strategy)
        x = rows_of(24)
        model = Net()
        loader = DataLoader(
            TensorDataset(x, x[:, :1].tanh()), batch_size=8 // self.accelerator.num_processes
        )
        groups = [{"params": model.enter.parameters()}, {"params": model.blocks.parameters()}]
        groups.append({"params": model.leave.parameters(), "weight_decay": 0.0})
        optimizer = torch.optim.AdamW(groups, lr=0.02)
        prepared = self.accelerator.prepare(model, optimizer, loader)
        self.model, self.optimizer, self.loader = prepared

    def one_pass(self) -> list[float]:
        losses = []
        for inputs, targets in self.loader:
            loss = nn.functional.mse_loss(self.model(inputs), targets)
            self.accelerator.backward(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(self.accelerator.reduce(loss.detach(), "mean").item())
        return losses


def trains_and_saves(strategy: Strategy, folder: Path) -> list[float]:
    run = Run(strategy)
    losses = run.one_pass()
    run.accelerator.save_state(folder)
    run.accelerator.save_model(run.model, folder / "exported")
    return losses + run.one_pass()


def loads_and_trains(strategy: Strategy, folders: list[Path]) -> list[list[float]]:
    found = []
    for folder in folders:
        run = Run(strategy)
        run.accelerator.load_state(folder)
        found.append(run.one_pass())
    return found


def test_what_one_way_saved_another_goes_on_with(tmp_path: Path) -> None:
    expected: list[float] = []
    for name, (num_ranks, strategy) in WAYS.items():
        losses = notebook_launcher(
            trains_and_saves, (strategy, tmp_path / name), num_ranks, device="cpu"
        )[0]
        expected = expected or losses
        assert losses == pytest.approx(expected, rel=1e-5), name
    folders = [tmp_path / name for name in WAYS]
    for name, (num_ranks, strategy) in WAYS.items():
        resumed = notebook_launcher(loads_and_trains, (strategy, folders), num_ranks, device="cpu")
        for was, losses in zip(WAYS, resumed[0], strict=True):
            assert losses == pytest.approx(expected[3:], rel=1e-5), (was, name)
    plain = Net()
    from notebook_accel import load_weights

    load_weights(plain, tmp_path / "zero 3 on 2" / "exported")
    assert sum(one.abs().sum().item() for one in plain.parameters()) > 0

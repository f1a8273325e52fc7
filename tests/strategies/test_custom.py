"""A package of somebody else adds a strategy in one file: the one that the documentation shows."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import Accelerator, notebook_launcher
from notebook_accel.errors import ConfigError
from notebook_accel.ranks.world import World
from notebook_accel.strategies.precision import Precision
from notebook_accel.strategies.registry import ENTRY_POINT_GROUP, build

PAGE = Path(__file__).parents[2] / "docs" / "custom-strategies.md"
NUM_RANKS, NUM_STEPS, LR = 2, 6, 0.2


def install(folder: Path, name: str, text: str, entry: str) -> None:
    """Put a package of one file into ``folder``, as pip would."""
    (folder / f"{name}.py").write_text(text)
    facts = folder / f"{name}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\n{name} = {entry}\n")


@pytest.fixture
def diloco(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    found = re.search(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    install(tmp_path, "diloco", found.group(1), "diloco:strategy")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("diloco")
    sys.modules.pop("diloco")


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(NUM_STEPS * 8, 3, generator=torch.Generator().manual_seed(1))
    return x, x[:, :1].tanh()


def train() -> dict[str, Any]:
    accelerator = Accelerator()
    torch.manual_seed(accelerator.process_index)  # ranks begin alike although they built apart
    model = nn.Linear(3, 1)
    loader = DataLoader(TensorDataset(*data()), batch_size=8 // accelerator.num_processes)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses, weights = [], []
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
        weights.append(model.weight.detach().flatten().tolist())
    return {"losses": losses, "weights": weights, "lines": [*accelerator._explanation()]}


def launched(wish: Any, num_processes: int = NUM_RANKS) -> list[dict[str, Any]]:
    run = notebook_launcher(train, (), num_processes, device="cpu", strategy=wish, timeout_s=60)
    return list(run)


def test_meeting_after_each_update_with_plain_steps_is_data_parallelism(diloco: Any) -> None:
    (alone,) = launched(None, 1)
    for rank in launched(diloco.DiLoCo(every=1, outer_lr=1.0, momentum=0.0)):
        assert rank["losses"] == pytest.approx(alone["losses"], abs=1e-6)
        assert rank["weights"][-1] == pytest.approx(alone["weights"][-1], abs=1e-6)
        assert "strategy diloco" in "\n".join(rank["lines"])


def by_hand(every: int, outer_lr: float, momentum: float) -> list[list[float]]:
    """Give the weights of rank 0 after each update, as the paper's algorithm 1 says."""
    torch.manual_seed(0)
    shared = nn.Linear(3, 1)
    outer = torch.optim.SGD(shared.parameters(), outer_lr, momentum, nesterov=True)
    copies = [nn.Linear(3, 1) for _ in range(NUM_RANKS)]
    for copy in copies:
        copy.load_state_dict(shared.state_dict())
    inner = [torch.optim.SGD(copy.parameters(), LR) for copy in copies]
    batches = DataLoader(TensorDataset(*data()), batch_size=4)
    weights = []
    for number, (x, y) in enumerate(batches):
        rank = number % NUM_RANKS
        inner[rank].zero_grad()
        nn.functional.mse_loss(copies[rank](x), y).backward()
        inner[rank].step()
        if rank < NUM_RANKS - 1:
            continue
        if (number // NUM_RANKS + 1) % every == 0:
            with torch.no_grad():
                own = zip(shared.parameters(), *(c.parameters() for c in copies), strict=True)
                for parameter, *ones in own:
                    parameter.grad = parameter - sum(ones) / NUM_RANKS
            outer.step()
            for copy in copies:
                copy.load_state_dict(shared.state_dict())
        weights.append(copies[0].weight.detach().flatten().tolist())
    return weights


def test_ranks_differ_between_meetings_and_are_alike_after_them(diloco: Any) -> None:
    first, second = launched(diloco.DiLoCo(every=3, outer_lr=0.7, momentum=0.9))
    alike = [a == b for a, b in zip(first["weights"], second["weights"], strict=True)]
    assert alike == [False, False, True] * 2
    for found, wanted in zip(first["weights"], by_hand(3, 0.7, 0.9), strict=True):
        assert found == pytest.approx(wanted, abs=1e-6)


def test_a_wish_of_a_package_refuses_what_cannot_be(diloco: Any) -> None:
    with pytest.raises(ConfigError, match="counts updates between two meetings"):
        diloco.DiLoCo(every=0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("strategy = 1 / 0", "ZeroDivisionError: division by zero"),
        ("strategy = 'oops'", "it names 'oops'"),
        ("strategy = (int, print)", "it names (<class 'int'>, <built-in function print>)"),
    ],
)
def test_a_package_that_does_not_work_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, diloco: Any, text: str, said: str
) -> None:
    install(tmp_path, "broken", text, "broken:strategy")
    world = World.alone()
    precision = Precision("no", world.device)
    with pytest.raises(ConfigError) as error:
        build(diloco.DiLoCo(), world, precision)
    assert error.value.what == f"the strategy broken (broken:strategy) cannot be used: {said}"
    assert "pip uninstall broken" in error.value.fix
    assert type(build(None, world, precision)).__name__ == "Engine"  # it is nobody else's trouble
    sys.modules.pop("broken", None)

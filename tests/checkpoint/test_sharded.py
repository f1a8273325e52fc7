"""Sharded states that are written while training goes on."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from notebook_accel import Accelerator, notebook_launcher
from notebook_accel.config.wishes import FSDP, Strategy, TensorParallel
from notebook_accel.errors import CheckpointError
from tests.support.nets import PLAN, Net

WISHES: dict[str, Strategy] = {"fsdp": FSDP(), "tensor": TensorParallel(plan=PLAN)}


def launched(function: Any, *args: Any, **how: Any) -> Any:
    return notebook_launcher(function, args, 2, device="cpu", timeout_s=60, **how)


def prepared(seed: int = 0) -> tuple[Accelerator, Any, Any]:
    torch.manual_seed(seed)
    accelerator = Accelerator()
    model = Net()
    return accelerator, *accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))


def step(accelerator: Accelerator, model: Any, optimizer: Any) -> None:
    accelerator.backward(model(torch.randn(4, 4)).square().mean())
    optimizer.step()
    optimizer.zero_grad()


def everything(accelerator: Accelerator, model: Any, optimizer: Any) -> list[float]:
    states = [accelerator.get_state_dict(model), optimizer.state_dict()["state"]]
    found: list[float] = []
    for one in (value for tree in states for value in tree.values()):
        tensors = one.values() if isinstance(one, dict) else [one]
        for tensor in tensors:
            whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            found += whole.flatten().tolist()
    return found


def saves_while_it_trains(folder: Path) -> Any:
    parts = prepared()
    accelerator = parts[0]
    moments, memory = [], []
    for number in range(3):
        step(*parts)
        accelerator.save_state(folder / str(number), async_save=True)
        memory.append({id(one) for one in accelerator._memory})
        moments.append(everything(*parts))
        step(*parts)  # must not be in the files
    accelerator.save_state(folder / "at once")
    at_once = everything(*parts)
    found = []
    for name in ("0", "1", "2", "at once"):
        accelerator.load_state(folder / name)
        found.append(everything(*parts))
    step(*parts)
    accelerator.save_state(folder / "last", async_save=True)  # the end waits for it
    return found == [*moments, at_once], memory[0] == memory[1] == memory[2], everything(*parts)


def loads(folder: Path) -> Any:
    parts = prepared(seed=1)
    parts[0].load_state(folder)
    return everything(*parts)


@pytest.mark.parametrize("name", WISHES)
def test_shards_saved_in_the_background_hold_what_was_then(name: str, tmp_path: Path) -> None:
    first, second = launched(saves_while_it_trains, tmp_path, strategy=WISHES[name])
    assert first[:2] == second[:2] == (True, True)
    assert launched(loads, tmp_path / "last", strategy=WISHES[name])[0] == first[2]


def saves_to_a_full_disk(folder: Path) -> Any:
    parts = prepared()
    accelerator = parts[0]
    step(*parts)
    accelerator.save_state(folder)
    saved = everything(*parts)
    step(*parts)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # no file may be larger
    accelerator.save_state(folder, async_save=True)  # says nothing: nothing is written yet
    told = ""
    try:
        accelerator.wait_for_save()
    except CheckpointError as error:
        told = str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    accelerator.load_state(folder)
    return told, everything(*parts) == saved


def test_shards_that_could_not_be_written_are_told_on_every_rank_later(tmp_path: Path) -> None:
    for told, is_as_before in launched(saves_to_a_full_disk, tmp_path, strategy=FSDP()):
        assert "the last checkpoint was not written" in told
        assert is_as_before

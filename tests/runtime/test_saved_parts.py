"""A state in parts that is saved by torch.save is told; the ways that save it whole are not."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from notebook_accel import Accelerator, GuardRail, notebook_launcher
from notebook_accel.config.wishes import FSDP
from tests.support.nets import Net


def saves(folder: Path) -> list[list[str]]:
    accelerator = Accelerator(cpu=True, strategy=FSDP())
    model = accelerator.prepare(Net())
    told = []
    state = accelerator.get_state_dict(model)
    for value in (model.state_dict(), state):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.save(value, folder / f"{accelerator.process_index}.pt")
        told.append([str(one.message) for one in seen if issubclass(one.category, GuardRail)])
    with warnings.catch_warnings():
        warnings.simplefilter("error", GuardRail)
        accelerator.save_model(model, folder / "whole")
        accelerator.save_state(folder / "state")
    return told


def test_a_part_of_a_state_that_is_saved_is_told_with_what_saves_all(tmp_path: Path) -> None:
    for parts, whole in notebook_launcher(saves, (tmp_path,), 2, device="cpu", timeout_s=60):
        assert len(parts) == 1
        assert "the state of a model in parts is saved" in parts[0]
        assert "accelerator.save_model(model, folder)" in parts[0]
        assert whole == []

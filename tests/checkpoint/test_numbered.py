"""Numbered checkpoints: which one is newest, which ones go."""

from __future__ import annotations

from pathlib import Path

import pytest

from notebook_accel.checkpoint import manifest, numbered
from notebook_accel.errors import CheckpointError


def save(root: Path, number: int) -> Path:
    folder = numbered.place(root, number)
    staging = manifest.Staging(folder)
    staging.path("model.safetensors").write_text("weights")
    staging.commit(number, 1, "single")
    return folder


def broken(root: Path, number: int) -> Path:
    folder = numbered.place(root, number)
    manifest.Staging(folder).path("model.safetensors").write_text("weig")
    return folder


def test_the_lowest_numbers_go_by_value_not_by_spelling(tmp_path: Path) -> None:
    """SV02: twelve saves with a limit of two leave checkpoint_10 and checkpoint_11."""
    for number in range(12):
        save(tmp_path, number)
        numbered.keep(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint_10", "checkpoint_11"]


def test_a_broken_checkpoint_does_not_count_for_the_limit(tmp_path: Path) -> None:
    save(tmp_path, 0)
    save(tmp_path, 1)
    broken(tmp_path, 2)
    numbered.keep(tmp_path, 2)
    assert numbered.numbers(tmp_path) == [0, 1, 2]
    save(tmp_path, 3)
    numbered.keep(tmp_path, 1)
    assert numbered.numbers(tmp_path) == [3]


def test_without_a_limit_all_stay_and_foreign_folders_always(tmp_path: Path) -> None:
    for name in ("best", "checkpoint_best", "checkpoint_1.deleted"):
        (tmp_path / name).mkdir()
    save(tmp_path, 0)
    numbered.keep(tmp_path, None)
    assert {path.name for path in tmp_path.iterdir()} == {"best", "checkpoint_best", "checkpoint_0"}


def test_the_newest_is_the_highest_complete_one(tmp_path: Path) -> None:
    save(tmp_path, 9)
    expected = save(tmp_path, 10)
    broken(tmp_path, 11)
    with pytest.warns(UserWarning, match="checkpoint_11 is incomplete"):
        assert numbered.newest(tmp_path) == expected


def test_nothing_to_load_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no complete checkpoint under"):
        numbered.newest(tmp_path / "checkpoints")


def test_a_complete_checkpoint_is_not_overwritten_a_broken_one_is(tmp_path: Path) -> None:
    numbered.refuse_overwriting(broken(tmp_path, 0))
    numbered.refuse_overwriting(tmp_path / "absent")
    with pytest.raises(CheckpointError, match="exists already") as caught:
        numbered.refuse_overwriting(save(tmp_path, 1))
    assert "load_state()" in str(caught.value) and "iteration" in str(caught.value)

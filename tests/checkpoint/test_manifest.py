"""A checkpoint counts when its manifest is there, and not before: whatever happens in between."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from notebook_accel.checkpoint import manifest
from notebook_accel.checkpoint.state import Checkpoint, Snapshot, write_own, write_shared
from notebook_accel.errors import CheckpointError


def snapshot(number: int) -> Snapshot:
    """A state in which everything is ``number``, and how much there is depends on it."""
    weight = {"w": torch.full((4,), float(number))}
    return Snapshot(
        step=number,
        optimizer_steps=[number],
        models=[weight] * (1 + number % 2),
        optimizers=[{"state": {0: {"exp_avg": torch.full((4,), float(number))}}}],
        schedulers=[{"last_epoch": number}],
        scaler=None,
        loaders=[{"taken": number}],
        custom=[{"n": number}],
        each_rank=[0],
        random={"torch_manual_seed": torch.full((8,), number, dtype=torch.uint8)},
    )


def save(folder: Path, number: int) -> None:
    write_shared(snapshot(number), folder, 0, 2, "ddp", safe=True)


def numbers(folder: Path) -> set[int]:
    """Every number that the checkpoint of ``folder`` holds; one if it is of one piece."""
    saved = Checkpoint(folder)
    assert saved.manifest is not None
    found = {saved.manifest.step}
    for i in range(1 + saved.manifest.step % 2):
        found |= set(saved.model(i)["w"].int().tolist())
    (optimizer,) = saved.shared("optimizers")
    found |= set(optimizer["state"][0]["exp_avg"].int().tolist())
    found |= {one["last_epoch"] for one in saved.shared("schedulers")}
    found |= {one["taken"] for one in saved.loaders()}
    own = saved.own(0)
    assert own is not None
    found |= set(own["torch_manual_seed"].tolist())
    return found | {one["n"] for one in saved.custom(own)}


def operations(folder: Path, die_at: int) -> Iterator[int]:
    """Count what is done to files of ``folder``; kill this process just before one of it."""
    count = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal count
        watched = event in ("open", "os.rename", "os.remove", "os.mkdir")
        if watched and str(args[0]).startswith(str(folder)):
            count += 1
            if count == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)  # cannot be removed: only for a child that ends
    while True:
        yield count


def save_killed(folder: Path, number: int, die_at: int) -> bool:
    """Save in a child that is killed at its ``die_at``-th operation; whether it was."""
    child = os.fork()
    if child == 0:
        next(operations(folder, die_at))
        save(folder, number)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def test_killed_anywhere_in_a_save_the_folder_holds_the_old_checkpoint_or_the_new(
    tmp_path: Path,
) -> None:
    seen = []
    for die_at in range(1, 100):
        folder = tmp_path / str(die_at)
        save(folder, 1)
        killed = save_killed(folder, 2, die_at)
        found = numbers(folder)
        assert found in ({1}, {2}), f"killed at operation {die_at}: {found}"
        seen += found
        save(folder, 3)  # and the next save is whole, and leaves nothing of the killed one
        assert numbers(folder) == {3}
        assert not [path for path in folder.iterdir() if path.name.endswith((".new", ".part"))]
        if not killed:
            break
    assert seen[0] == 1 and seen[-1] == 2
    assert 5 < len(seen) < 99


def test_killed_anywhere_in_a_first_save_the_folder_is_refused_or_whole(tmp_path: Path) -> None:
    outcomes = set()
    for die_at in range(2, 100):
        folder = tmp_path / str(die_at)
        killed = save_killed(folder, 1, die_at)
        try:
            assert numbers(folder) == {1}
            outcomes.add("whole")
        except CheckpointError as error:
            outcomes.add("incomplete" if "incomplete" in str(error) else "none")
        if not killed:
            break
    assert outcomes == {"none", "incomplete", "whole"}


def test_a_new_checkpoint_removes_the_files_that_only_the_old_one_had(tmp_path: Path) -> None:
    save(tmp_path, 1)
    assert (tmp_path / "model_1.safetensors").exists()
    save(tmp_path, 2)
    assert not (tmp_path / "model_1.safetensors").exists()


def test_the_manifest_says_what_is_there(tmp_path: Path) -> None:
    save(tmp_path, 3)
    said = json.loads((tmp_path / "checkpoint.json").read_text())
    assert (said["step"], said["world"], said["strategy"]) == (3, 2, "ddp")
    assert said["files"]["optimizer.bin"] == (tmp_path / "optimizer.bin").stat().st_size
    assert set(said["files"]) == {path.name for path in tmp_path.iterdir()} - {"checkpoint.json"}


def test_a_rank_that_has_saved_already_keeps_what_belongs_to_the_checkpoint_that_counts(
    tmp_path: Path,
) -> None:
    """Rank 1 is done with save 2 when the main rank is killed in it: save 1 is of one piece."""
    save(tmp_path, 1)
    write_own(snapshot(1), tmp_path, 1)
    write_own(snapshot(2), tmp_path, 1)
    own = Checkpoint(tmp_path).own(1)
    assert own is not None and own["step"] == 1
    save(tmp_path, 2)
    own = Checkpoint(tmp_path).own(1)
    assert own is not None and own["step"] == 2
    assert [one["n"] for one in Checkpoint(tmp_path).custom(own)] == [2]


def test_what_a_rank_wrote_at_another_step_does_not_count(tmp_path: Path) -> None:
    write_own(snapshot(1), tmp_path, 1)
    save(tmp_path, 2)
    assert Checkpoint(tmp_path).own(1) is None
    assert Checkpoint(tmp_path).own(7) is None


def refused(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(folder)
    return str(caught.value)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    said = refused(tmp_path / "absent")
    assert "there is no checkpoint folder" in said and "save_on_each_node" in said


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    assert "holds no checkpoint" in refused(tmp_path)


def test_a_lost_or_cut_file_is_named_with_its_bytes(tmp_path: Path) -> None:
    save(tmp_path, 2)
    path = tmp_path / "optimizer.bin"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:10])
    assert f"optimizer.bin has 10 bytes instead of {size}" in refused(tmp_path)
    path.unlink()
    said = refused(tmp_path)
    assert "is incomplete: optimizer.bin is missing" in said and "load an earlier" in said


def test_a_manifest_of_a_newer_version_or_a_broken_one_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 1)
    path = tmp_path / manifest.NAME
    said = json.loads(path.read_text())
    path.write_text(json.dumps({**said, "format": 99, "written_by": "notebook_accel 9"}))
    assert "has format 99" in refused(tmp_path) and "notebook_accel 9" in refused(tmp_path)
    path.write_text("{")
    assert "cannot be read" in refused(tmp_path)
    save(tmp_path, 2)  # saving over it is no problem
    assert numbers(tmp_path) == {2}


def test_missing_pieces_are_counted(tmp_path: Path) -> None:
    save(tmp_path, 2)
    saved = Checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="holds 1 optimizers; this run prepared 2"):
        saved.check(optimizers=2, schedulers=1, registered=1)
    with pytest.raises(CheckpointError, match="no weights for model 1"):
        saved.model(1)
    with pytest.raises(CheckpointError, match="holds 1 registered objects; this run registered 0"):
        saved.check(optimizers=1, schedulers=1, registered=0)

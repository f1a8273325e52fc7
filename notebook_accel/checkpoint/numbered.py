"""Numbered checkpoints of one project: ``checkpoints/checkpoint_0``, ``checkpoint_1``, ..."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from pathlib import Path

from notebook_accel.checkpoint.manifest import is_complete
from notebook_accel.errors import CheckpointError

_NUMBERED = re.compile(r"checkpoint_(\d+)")
_GOING = ".deleted"


def place(root: Path, number: int) -> Path:
    """The folder of checkpoint ``number``."""
    return root / f"checkpoint_{number}"


def numbers(root: Path) -> list[int]:
    """The numbers of the checkpoints under ``root``, whole or not, lowest first."""
    found = [_NUMBERED.fullmatch(path.name) for path in root.glob("checkpoint_*")]
    return sorted(int(match[1]) for match in found if match)


def newest(root: Path, say: bool = True) -> Path:
    """Find the complete checkpoint with the highest number; ``say`` warns of higher broken ones.

    Errors: CheckpointError if there is none.
    """
    for number in reversed(numbers(root)):
        if is_complete(place(root, number)):
            return place(root, number)
        if say:
            warnings.warn(
                f"{place(root, number)} is incomplete (a save was killed): an earlier one counts.",
                stacklevel=3,
            )
    raise CheckpointError(
        f"there is no complete checkpoint under {root}",
        "load_state() without a folder loads the newest one that automatic naming wrote there",
        "call save_state() first, or give load_state the folder of a checkpoint",
    )


def refuse_overwriting(folder: Path) -> None:
    """Raise if ``folder`` holds a complete checkpoint.

    Errors: CheckpointError.
    """
    if folder.is_dir() and is_complete(folder):
        raise CheckpointError(
            f"{folder} exists already",
            "an earlier run saved under this number, and its checkpoint would be lost",
            "call load_state() to continue that run, set ProjectConfiguration(iteration=...) "
            "behind its numbers, or use another project_dir",
        )


def keep(root: Path, limit: int | None) -> None:
    """Delete the lowest numbers until ``limit`` complete checkpoints are left; None keeps all.

    Broken ones below the lowest that is kept go too.
    """
    for path in root.glob(f"*{_GOING}"):  # what a killed run had begun to delete
        shutil.rmtree(path, ignore_errors=True)
    if limit is None:
        return
    kept = [number for number in numbers(root) if is_complete(place(root, number))][-limit:]
    for number in numbers(root):
        if kept and number < kept[0]:
            going = root / f"checkpoint_{number}{_GOING}"  # never half a checkpoint under its name
            os.replace(place(root, number), going)
            shutil.rmtree(going, ignore_errors=True)


def sweep(root: Path) -> None:
    """Delete what lies broken below the newest complete checkpoint; no rank may be saving.

    A rank that writes late puts its file where the main rank has deleted a checkpoint already.
    """
    complete = [number for number in numbers(root) if is_complete(place(root, number))]
    for number in numbers(root):
        if complete and number < complete[-1] and number not in complete:
            shutil.rmtree(place(root, number), ignore_errors=True)

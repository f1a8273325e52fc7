"""The word that a checkpoint is whole: ``checkpoint.json``, written last.

A save writes every file beside its place, under a name of its own, then the manifest; only with the
manifest does the new checkpoint count. Then the files move to their places. Killed before the
manifest, the folder still is the previous checkpoint; killed after it, it is the new one, some of
whose files are found under the other name.

    model.safetensors.3f2a91c0.new      staged
    checkpoint.json                     replaced in one step: names, bytes, "3f2a91c0"
    model.safetensors                   in place

Parts of sharded states are in place at once, in a subfolder that no other save has used.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from notebook_accel import __version__
from notebook_accel.errors import CheckpointError

NAME = "checkpoint.json"
FORMAT = 1
STAGED = ".new"
PARTS = "shards-"
# What the main rank of Accelerate always leaves, hooks aside: a folder without a manifest that
# holds one of these was written by Accelerate.
FOREIGN = ("model*.safetensors", "pytorch_model*.bin", "optimizer.bin", "random_states_0.pkl")


@dataclass(frozen=True)
class Manifest:
    """What the main rank wrote: its files with their sizes, and the moment of the run.

    Units: ``files`` gives bytes; ``step`` counts optimizer steps, ``world`` ranks.
    """

    step: int
    world: int
    strategy: str
    files: dict[str, int]
    token: str
    format: int = FORMAT
    written_by: str = f"notebook_accel {__version__}"

    def where(self, folder: Path, name: str) -> Path:
        """Find a file of this checkpoint: beside its place if the save was killed in between."""
        staged = _staged(folder, name, self.token)
        return staged if staged.exists() else folder / name


class Staging:
    """One save into ``folder``, of which nothing counts until ``commit``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._token = secrets.token_hex(4)
        self._names: list[str] = []
        self._in_place: list[str] = []

    def path(self, name: str) -> Path:
        """Where to write the file that will be called ``name``."""
        self._names.append(name)
        return _staged(self._folder, name, self._token)

    def take_in(self, folder: str) -> None:
        """Count the files of the subfolder ``folder``, which nobody else ever uses, to this save.

        They are at their places already: no file of the checkpoint before had their names.
        """
        self._in_place += [f"{folder}/{one.name}" for one in (self._folder / folder).iterdir()]

    def commit(self, step: int, world: int, strategy: str) -> None:
        """Make everything written until now the checkpoint of this folder, in one step."""
        folder, token = self._folder, self._token
        sizes = {name: _staged(folder, name, token).stat().st_size for name in self._names}
        sizes.update({name: (folder / name).stat().st_size for name in self._in_place})
        manifest = Manifest(step, world, strategy, sizes, token)
        try:
            before = _read(folder / NAME)
        except CheckpointError:  # damaged, or of a newer version: about to be replaced
            before = None
        text = json.dumps(asdict(manifest), indent=1)
        in_one_step(folder / NAME, lambda beside: beside.write_text(text))
        for name in self._names:
            os.replace(_staged(folder, name, token), folder / name)
        stale = [] if before is None else [name for name in before.files if name not in sizes]
        for path in [*(folder / name for name in stale), *folder.glob(f"*{STAGED}")]:
            path.unlink(missing_ok=True)
        _drop_folders(folder, keep={name.partition("/")[0] for name in self._in_place})


def new_subfolder() -> str:
    """Name a subfolder for parts of one save, which no other save has used."""
    return f"{PARTS}{secrets.token_hex(4)}"


def _drop_folders(folder: Path, keep: set[str]) -> None:
    """Remove the parts of saves that never became checkpoints, or no longer are."""
    for one in folder.glob(f"{PARTS}*"):
        if one.name not in keep:
            shutil.rmtree(one, ignore_errors=True)


def in_one_step(path: Path, write_to: Callable[[Path], object]) -> None:
    """Let ``write_to`` write a file that appears under its name only when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.part")
    write_to(beside)
    os.replace(beside, path)


def read(folder: Path) -> Manifest | None:
    """Read and check the manifest of ``folder``; None for a checkpoint that Accelerate wrote.

    Errors: CheckpointError for a folder that is absent, holds no checkpoint, or an incomplete one.
    """
    if not folder.is_dir():
        raise CheckpointError(
            f"there is no checkpoint folder {folder}",
            "nothing was saved there, or not on this machine",
            "check the path; where machines share no disk, save with "
            "ProjectConfiguration(save_on_each_node=True)",
        )
    manifest = _read(folder / NAME)
    if manifest is None:
        if _holds_any(folder, (f"*{STAGED}", f"{PARTS}*")):
            raise _incomplete(folder, f"it has no {NAME}, which is written last")
        if not _holds_any(folder, FOREIGN):
            raise CheckpointError(
                f"{folder} holds no checkpoint",
                f"it has no {NAME} and none of the files that save_state() writes",
                "give the folder that save_state() returned",
            )
        return None
    for name, size in manifest.files.items():
        path = manifest.where(folder, name)
        found = path.stat().st_size if path.exists() else None
        if found != size:
            said = "is missing" if found is None else f"has {found} bytes instead of {size}"
            raise _incomplete(folder, f"{name} {said}")
    return manifest


def is_complete(folder: Path) -> bool:
    """Whether ``folder`` holds a checkpoint that can be loaded."""
    try:
        read(folder)
    except CheckpointError:
        return False
    return True


def _incomplete(folder: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint {folder} is incomplete: {why}",
        "a save was killed before its end, or files were removed or cut off later",
        "load an earlier checkpoint, and delete this folder",
    )


def _read(path: Path) -> Manifest | None:
    try:
        found = json.loads(path.read_text())
        if found.get("format", 0) <= FORMAT:
            return Manifest(**found)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError) as reason:
        raise CheckpointError(
            f"{path} cannot be read: {reason}",
            "it was written by hand, or damaged",
            "load another checkpoint",
        ) from reason
    raise CheckpointError(
        f"{path} has format {found['format']}; this version reads up to {FORMAT}",
        f"it was written by a newer version ({found.get('written_by')})",
        "update notebook_accel",
    )


def _staged(folder: Path, name: str, token: str) -> Path:
    return folder / f"{name}.{token}{STAGED}"


def _holds_any(folder: Path, patterns: Iterable[str]) -> bool:
    return any(next(folder.glob(pattern), None) is not None for pattern in patterns)

"""A checkpoint as a value, on its way to a folder and back.

The main rank writes everything that all ranks share; every rank writes what it alone knows (its
random numbers, its place in the loaders, its registered objects) into one file of its own. No rank
waits for another: a checkpoint is what the main rank's manifest says, and a rank whose file is not
there, or is of another step, starts from the main rank's.

Names of files are Accelerate's:

    model.safetensors, model_1.safetensors, ... (or pytorch_model.bin, ...)
    optimizer.bin   scheduler.bin   scaler.pt   dl_state_dict.bin   custom_checkpoint_0.pkl
    random_states_0.pkl, random_states_1.pkl, ...    one a rank
    shards-5d02b7aa/                                 sharded tensors (see sharded)
    checkpoint.json                                  the manifest
"""

from __future__ import annotations

import copy
import io
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from notebook_accel.checkpoint import manifest, weights
from notebook_accel.checkpoint.names import identity
from notebook_accel.checkpoint.pickled import load_pickled
from notebook_accel.errors import CheckpointError
from notebook_accel.events import tasks
from notebook_accel.ranks.collectives import map_tree

_BEFORE = ".previous"
_SHARED = (  # field, stem of its files, their end
    ("optimizers", "optimizer", ".bin"),
    ("schedulers", "scheduler", ".bin"),
    ("loaders", "dl_state_dict", ".bin"),
)
SCALER = "scaler.pt"


@dataclass(frozen=True)
class Snapshot:
    """What one rank puts into a checkpoint: state dicts in the order of ``prepare``.

    ``each_rank`` are the indices of ``custom`` that every rank keeps for itself.
    """

    step: int
    optimizer_steps: list[int]
    models: list[dict[str, Any]]
    optimizers: list[dict[str, Any]]
    schedulers: list[dict[str, Any]]
    scaler: dict[str, Any] | None
    loaders: list[dict[str, Any]]
    custom: list[Any]
    each_rank: list[int]
    random: dict[str, Any]

    def copied(self, memory: list[Tensor]) -> Snapshot:
        """Copy all of it into the memory of the CPU, so that training may go on.

        ``memory`` are the tensors of the copy before, which are written over where they fit, and
        becomes those of this one: fresh memory costs several times as much as copying.
        """
        spare: dict[Any, list[Tensor]] = {}
        for one in memory:
            spare.setdefault(_form(one), []).append(one)
        known: dict[Any, Tensor] = {}  # tied tensors stay tied: their file holds them once

        def leaf(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return copy.deepcopy(value)
            mark = identity(value)
            if mark not in known:
                old = spare.get(_form(value))
                value = value.detach()
                known[mark] = old.pop().copy_(value) if old else value.to("cpu", copy=True)
            return known[mark]

        snapshot = Snapshot(*(map_tree(leaf, getattr(self, one.name)) for one in fields(self)))
        memory[:] = known.values()
        return snapshot


def write_shared(
    snapshot: Snapshot,
    folder: Path,
    rank: int,
    world: int,
    strategy: str,
    safe: bool,
    parts: str | None = None,
) -> None:
    """Write what all ranks share, and this rank's own file, as the checkpoint of ``folder``.

    ``parts`` is the subfolder in which all ranks have written sharded tensors.
    """
    staging = manifest.Staging(folder)
    if parts is not None:
        staging.take_in(parts)
    with tasks.counting("saving checkpoint", _num_bytes(snapshot), "bytes") as wrote:
        _write_pieces(snapshot, staging, safe, wrote)
    torch.save(_own(snapshot), staging.path(_rank_file(rank)))
    staging.commit(snapshot.step, world, strategy)


def _write_pieces(
    snapshot: Snapshot, staging: manifest.Staging, safe: bool, wrote: Callable[[int], None]
) -> None:
    for i, state in enumerate(snapshot.models):
        state = weights.without_repeats(state) if safe else state
        weights.write(state, staging.path(weights.file_name(safe, i)), safe, wrote)
    for field, stem, end in _SHARED:
        for i, state in enumerate(getattr(snapshot, field)):
            torch.save(state, staging.path(weights.nth_file(stem, end, i)))
            wrote(_num_bytes(state))
    if snapshot.scaler is not None:
        torch.save(snapshot.scaler, staging.path(SCALER))
    for i, state in enumerate(snapshot.custom):
        torch.save(state, staging.path(_custom(i)))


def _num_bytes(tree: Any) -> int:
    """How much a tree's tensors weigh, and so about how large its file will be."""
    if isinstance(tree, Snapshot):
        return sum(map(_num_bytes, (tree.models, tree.optimizers, tree.schedulers)))
    if isinstance(tree, Mapping):
        return sum(map(_num_bytes, tree.values()))
    if isinstance(tree, (list, tuple)):
        return sum(map(_num_bytes, tree))
    return weights.size_of(tree)


def write_own(snapshot: Snapshot, folder: Path, rank: int) -> None:
    """Write what only this rank knows.

    The file of the checkpoint before stays beside it: until the main rank has written its manifest,
    that is the one that counts.
    """
    custom = {i: _as_tensor(snapshot.custom[i]) for i in snapshot.each_rank}
    final = folder / _rank_file(rank)
    folder.mkdir(parents=True, exist_ok=True)
    beside = final.with_name(f"{final.name}.part")
    torch.save({**_own(snapshot), "custom": custom}, beside)
    if final.exists():
        os.replace(final, final.with_name(final.name + _BEFORE))
    os.replace(beside, final)


class Checkpoint:
    """A folder that holds a whole checkpoint, ours or Accelerate's, to be read piece by piece.

    Errors: CheckpointError for a folder that holds none, and for pieces that are not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = manifest.read(folder)

    def has(self, name: str) -> bool:
        """Whether the checkpoint has a file of this name."""
        if self.manifest is None:
            return (self.folder / name).exists()
        return name in self.manifest.files

    def path(self, name: str) -> Path:
        """Where the file ``name`` is."""
        if self.manifest is None:
            return self.folder / name
        return self.manifest.where(self.folder, name)

    @property
    def parts(self) -> Path | None:
        """Where the sharded tensors lie; None without any."""
        files = () if self.manifest is None else self.manifest.files
        return next((self.folder / name.split("/")[0] for name in files if "/" in name), None)

    def model(self, index: int) -> dict[str, Any]:
        """Read the weights of model ``index``."""
        for safe in (True, False):
            name = weights.file_name(safe, index)
            if self.has(name):
                return weights.read(self.path(name))
        raise CheckpointError(
            f"{self.folder} has no weights for model {index} (counted from 0)",
            "fewer models were prepared when it was saved, or a hook took over saving them",
            "prepare the same models as then, or register the load hook that goes with the hook",
        )

    def check(self, optimizers: int, schedulers: int, registered: int) -> None:
        """Refuse other numbers of these than were saved, before anything is changed.

        A run without any optimizer or scheduler does not train: theirs are left in the files.

        Errors: CheckpointError naming what there is too much or too little of.
        """
        for field, wanted in (("optimizers", optimizers), ("schedulers", schedulers)):
            found = len(self._files(field))
            if wanted and found != wanted:
                raise CheckpointError(
                    f"{self.folder} holds {found} {field}; this run prepared {wanted}",
                    "states are matched by their order in prepare()",
                    f"prepare the same {field} as when it was saved, in the same order",
                )
        found = len(self._custom_files())
        if found != registered:
            raise CheckpointError(
                f"{self.folder} holds {found} registered objects; this run registered {registered}",
                "they are matched by their order in register_for_checkpointing()",
                "register the same objects as when it was saved, in the same order",
            )

    def shared(self, field: str, **load_kwargs: Any) -> list[Any]:
        """Read the states of all optimizers or schedulers."""
        return [load_pickled(path, **load_kwargs) for path in self._paths(field)]

    def loaders(self) -> list[dict[str, Any]]:
        """Read where the main rank stood in the loaders; nothing from Accelerate's files."""
        return [] if self.manifest is None else [load_pickled(p) for p in self._paths("loaders")]

    def scaler(self) -> dict[str, Any] | None:
        """Read the loss scaler's state, if there was one."""
        return load_pickled(self.path(SCALER)) if self.has(SCALER) else None

    def own(self, rank: int) -> dict[str, Any] | None:
        """Read what rank ``rank`` wrote about itself at this step; None if it did not."""
        name = _rank_file(rank)
        if self.has(name):
            return self._random(self.path(name))
        if self.manifest is None or rank >= self.manifest.world:
            return None
        for path in (self.folder / name, self.folder / (name + _BEFORE)):
            found = self._random(path) if path.exists() else {}
            if found.get("step") == self.manifest.step:
                return found
        return None

    def main_own(self) -> dict[str, Any] | None:
        """Read what the main rank (of this machine) wrote about itself."""
        names = ["random_states_0.pkl"] if self.manifest is None else list(self.manifest.files)
        name = next((name for name in names if name.startswith("random_states_")), None)
        return None if name is None or not self.has(name) else self._random(self.path(name))

    def custom(self, own: dict[str, Any] | None) -> Iterator[Any]:
        """Read the registered objects' states: this rank's where it has its own. Any pickle."""
        mine = {} if own is None else own.get("custom", {})
        for i, name in enumerate(self._custom_files()):
            if i in mine:
                yield torch.load(io.BytesIO(mine[i].numpy().tobytes()), weights_only=False)
            else:
                yield load_pickled(self.path(name), trusted=True)

    def _custom_files(self) -> list[str]:
        return [_custom(i) for i in weights.numbered(self.has, _custom)]

    def _files(self, field: str) -> list[str]:
        stem, end = next((stem, end) for name, stem, end in _SHARED if name == field)
        name = partial(weights.nth_file, stem, end)
        return [name(i) for i in weights.numbered(self.has, name)]

    def _paths(self, field: str) -> list[Path]:
        return [self.path(name) for name in self._files(field)]

    def _random(self, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = load_pickled(path)
        return found


def _form(tensor: Tensor) -> Any:
    """What two tensors have in common if one can be written over the other."""
    how_it_lies = getattr(tensor, "placements", None), getattr(tensor, "device_mesh", None)
    return tensor.shape, tensor.dtype, tensor.layout, how_it_lies


def _own(snapshot: Snapshot) -> dict[str, Any]:
    """What every rank knows about itself, as plain data."""
    return {
        **snapshot.random,
        "step": snapshot.step,
        "optimizer_steps": snapshot.optimizer_steps,
        "loaders": snapshot.loaders,
    }


def _as_tensor(state: Any) -> Tensor:
    """A pickle inside plain data, which is only opened by whoever wants to."""
    file = io.BytesIO()
    torch.save(state, file, pickle_protocol=pickle.DEFAULT_PROTOCOL)
    return torch.frombuffer(bytearray(file.getbuffer()), dtype=torch.uint8)


def _custom(index: int) -> str:
    return f"custom_checkpoint_{index}.pkl"


def _rank_file(rank: int) -> str:
    return f"random_states_{rank}.pkl"

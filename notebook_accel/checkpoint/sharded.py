"""States that lie across ranks: each rank writes the parts it holds, any number of ranks reads.

Only sharded tensors lie in these files, under flat names ("model.0.enter.weight",
"optimizer.0.3.exp_avg": optimizer 0, its parameter 3); everything else of a checkpoint is where it
always is.

Source: torch.distributed.checkpoint.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from notebook_accel.checkpoint.manifest import new_subfolder
from notebook_accel.checkpoint.state import Checkpoint, Snapshot
from notebook_accel.errors import CheckpointError
from notebook_accel.ranks.collectives import all_objects
from notebook_accel.ranks.shards import is_sharded
from notebook_accel.ranks.world import World, when_left


@dataclass(frozen=True)
class Apart:
    """The sharded tensors of one save under flat names, and where this rank writes its parts.

    ``name`` is a subfolder of ``folder``, None where nothing is sharded. ``group`` are the ranks
    that write together, on connections of their own if training goes on meanwhile.
    """

    tensors: Mapping[str, Tensor]
    folder: Path
    name: str | None = None
    group: dist.ProcessGroup | None = None

    def write(self) -> None:
        """Write what this rank holds, and on the first rank the list of all that is there.

        Ranks: all ranks call it; the first returns when all have written.
        """
        if self.name is not None:
            write(self.tensors, self.folder / self.name, self.group)


def set_apart(
    snapshot: Snapshot, folder: Path, world: World, in_background: bool = False
) -> tuple[Snapshot, Apart]:
    """Take the sharded tensors out of a snapshot; gives the rest, and them.

    Ranks: all ranks call it, where anything is sharded.
    """
    rest, tensors = _divided(snapshot)
    if not tensors:
        return snapshot, Apart({}, folder)
    name = all_objects(new_subfolder(), world)[0]
    group = _own_group(id(dist.group.WORLD)) if in_background else None
    return rest, Apart(tensors, folder, name, group)


@functools.cache
def _own_group(world: int) -> dist.ProcessGroup | None:
    """Connect the ranks for what they write in the background: calls of both kinds must not mix."""
    when_left(_own_group.cache_clear)
    group: dist.ProcessGroup | None = dist.new_group(backend="gloo")
    return group


def _divided(snapshot: Snapshot) -> tuple[Snapshot, dict[str, Tensor]]:
    parts: dict[str, Tensor] = {}

    def without(state: Mapping[Any, Any], prefix: str) -> dict[Any, Any]:
        parts.update({f"{prefix}.{name}": one for name, one in state.items() if is_sharded(one)})
        return {name: one for name, one in state.items() if not is_sharded(one)}

    models = [without(state, f"model.{i}") for i, state in enumerate(snapshot.models)]
    optimizers = [
        {
            **tree,
            "state": {
                index: without(state, f"optimizer.{i}.{index}")
                for index, state in tree.get("state", {}).items()
            },
        }
        for i, tree in enumerate(snapshot.optimizers)
    ]
    return replace(snapshot, models=models, optimizers=optimizers), parts


def write(
    parts: Mapping[str, Tensor], folder: Path, group: dist.ProcessGroup | None = None
) -> None:
    """Write what the ranks of ``group`` (None: all) hold of ``parts`` into ``folder``.

    Ranks: all ranks of the group call it, with the same names.
    """
    from torch.distributed.checkpoint.state_dict_saver import save

    folder.mkdir(parents=True, exist_ok=True)
    # About torch's own use of its older names. Not for a while only: another thread may train.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    save(dict(parts), checkpoint_id=os.fspath(folder), process_group=group)


def read_into(space: dict[str, Tensor], folder: Path) -> None:
    """Read the tensors of these names in ``folder`` into the memory that they have in ``space``.

    Ranks: each for itself.
    """
    from torch.distributed.checkpoint.state_dict_loader import load

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no rank waits for another is meant
        load(space, checkpoint_id=os.fspath(folder), no_dist=True)


class Parts:
    """The files that ``write`` made, to be read by any number of ranks, each for itself."""

    def __init__(self, folder: Path) -> None:
        from torch.distributed.checkpoint.filesystem import FileSystemReader

        self._folder = folder
        try:
            self._there: Mapping[str, Any] = (
                FileSystemReader(os.fspath(folder)).read_metadata().state_dict_metadata
            )
        except (OSError, EOFError, ValueError) as reason:
            raise CheckpointError(
                f"the shards in {folder} cannot be read: {reason}",
                "their list (.metadata) is absent or damaged",
                "load another checkpoint",
            ) from reason

    def model(self, index: int, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Read model ``index``; each tensor lies across ranks as that of its name in ``own``."""
        return self._read(f"model.{index}.", lambda name: own.get(name))

    def add_to(self, index: int, tree: dict[str, Any], parameters: Sequence[Tensor]) -> None:
        """Read what belongs into the state of optimizer ``index``, as its parameters lie."""

        def like(name: str) -> Tensor | None:
            number = int(name.partition(".")[0])
            return parameters[number] if number < len(parameters) else None

        for name, one in self._read(f"optimizer.{index}.", like).items():
            number, _, field = name.partition(".")
            tree["state"].setdefault(int(number), {})[field] = one

    def _read(self, prefix: str, like: Any) -> dict[str, Tensor]:
        wanted = {
            name: _space(facts, like(name.removeprefix(prefix))) for name, facts in self._of(prefix)
        }
        if wanted:
            read_into(wanted, self._folder)
        return {name.removeprefix(prefix): one for name, one in wanted.items()}

    def _of(self, prefix: str) -> Iterator[tuple[str, Any]]:
        return ((name, facts) for name, facts in self._there.items() if name.startswith(prefix))


def of(saved: Checkpoint) -> Parts | None:
    """Give the sharded tensors of a checkpoint; None if it has none."""
    return None if saved.parts is None else Parts(saved.parts)


def _space(facts: Any, like: Tensor | None) -> Tensor:
    """Make room for a saved tensor, cut as ``like`` is if that has its shape."""
    if like is not None and is_sharded(like) and like.shape == facts.size:
        return torch.zeros_like(like, dtype=facts.properties.dtype)
    return torch.zeros(facts.size, dtype=facts.properties.dtype)

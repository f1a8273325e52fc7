"""From a checkpoint in pieces to one file of weights that the plain module loads.

Read are: folders of ``save_state`` (ours, whole or sharded, and Accelerate's), folders of
``torch.distributed.checkpoint`` (what FSDP writes), and shards beside an index.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from notebook_accel.checkpoint import manifest, sharded, weights
from notebook_accel.checkpoint.manifest import in_one_step
from notebook_accel.checkpoint.state import Checkpoint
from notebook_accel.errors import CheckpointError, ConfigError

_METADATA = ".metadata"
_FSDP = "pytorch_model_fsdp_"
_NOT_WEIGHTS = ("optimizer", "optim", "scheduler", "rng_state")
_WHOLE = 1 << 62  # bytes of a shard: one file, however large


def merge(
    checkpoint_directory: str,
    output_path: str,
    safe: bool = True,
    remove: bool = False,
    max_shard_size: str | None = None,
) -> dict[str, Any]:
    """Write the weights in a checkpoint to ``output_path``: a folder, or a file by its ending.

    Gives the files written, with the number of tensors and their bytes. ``remove`` deletes the
    checkpoint once all is written.

    Ranks: one process alone.
    Errors: CheckpointError for what is no checkpoint; ConfigError for an output inside it.
    """
    source, target = Path(checkpoint_directory), Path(output_path)
    _check(source, target, remove)
    written = []
    for index, state in enumerate(models(source)):
        tensors = {name: one for name, one in state.items() if isinstance(one, torch.Tensor)}
        file = _target(target, index, safe)
        if file is not None:
            in_one_step(file, partial(weights.write, tensors, safe=_is_safe(file)))
        else:
            folder = target if index == 0 else target / f"model_{index}"
            weights.export(tensors, folder, max_shard_size or _WHOLE, safe)
            file = folder
        num_bytes = sum(map(weights.size_of, tensors.values()))
        written.append({"path": str(file), "tensors": len(tensors), "bytes": num_bytes})
    if remove:
        shutil.rmtree(source)
    return {"written": written, "removed": str(source) if remove else None}


def models(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Read the weights of each model in a checkpoint.

    Errors: CheckpointError for a folder without weights.
    """
    if (folder / _METADATA).is_file():
        yield read_distributed(folder)
        return
    parts = sorted(folder.glob(f"{_FSDP}*"), key=lambda path: path.name)
    if parts and all((part / _METADATA).is_file() for part in parts):
        yield from map(read_distributed, parts)
        return
    if (folder / manifest.NAME).exists():
        yield from _ours(Checkpoint(folder))
        return
    if any(folder.rglob("*zero_pp_rank_*")) or (folder / "zero_to_fp32.py").exists():
        raise CheckpointError(
            f"{folder} was written by DeepSpeed",
            "its pieces are put together by a script that DeepSpeed leaves beside them",
            f"run: python {folder}/zero_to_fp32.py {folder} OUTPUT",
        )
    yield weights.read_folder(folder)
    for index in weights.models_in(lambda name: (folder / name).exists(), first=1):
        yield Checkpoint(folder).model(index)


def read_distributed(folder: Path) -> dict[str, Any]:
    """Read the model in a folder of ``torch.distributed.checkpoint``, without any process group.

    What lies under "model" is it, if there is such a part; else all that is no optimizer.

    Errors: CheckpointError for a damaged folder.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    try:
        facts = FileSystemReader(os.fspath(folder)).read_metadata()
    except Exception as reason:  # a pickle of torch's: anything can be wrong with it
        raise _damaged(folder, reason) from reason
    paths = facts.planner_data or {}
    space = {
        name: torch.empty(one.size, dtype=one.properties.dtype)
        for name, one in facts.state_dict_metadata.items()
        if isinstance(one, TensorStorageMetadata)
        and str(paths.get(name, name.split("."))[0]) not in _NOT_WEIGHTS
    }
    named = {name: _plain(paths.get(name), name) for name in space}
    inside = {name for name, (is_model, _) in named.items() if is_model}
    space = {name: space[name] for name in (inside or space)}
    try:
        sharded.read_into(space, folder)
    except CheckpointException as reason:  # no Exception, and its text is a wall of frames
        raise _damaged(folder, next(iter(reason.failures.values()))[0]) from reason
    return {named[name][1]: one for name, one in space.items()}


def _ours(saved: Checkpoint) -> Iterator[Mapping[str, Any]]:
    parts = sharded.of(saved)
    for index in weights.models_in(saved.has):
        state = saved.model(index)
        yield state if parts is None else {**state, **parts.model(index, {})}


def _plain(path: Any, name: str) -> tuple[bool, str]:
    """Tell whether a tensor lies under "model", and its name in the module."""
    if path and path[0] == "model" and len(path) > 1:
        return True, ".".join(map(str, path[1:]))
    return False, name


def _is_safe(file: Path) -> bool:
    return file.suffix == weights.SAFE_END


def _target(target: Path, index: int, safe: bool) -> Path | None:
    """The file that ``target`` names, if it does; the second model's is numbered."""
    if target.suffix not in (weights.SAFE_END, ".bin", ".pt", ".pth"):
        return None
    if not safe and _is_safe(target):
        raise ConfigError(
            f"{target} asks for safetensors, --unsafe_serialization for a pickle",
            "the ending says how the file is written",
            "write OUTPUT.bin, or leave --unsafe_serialization out",
        )
    return target if index == 0 else target.with_stem(f"{target.stem}_{index}")


def _check(source: Path, target: Path, remove: bool) -> None:
    if not source.is_dir():
        raise CheckpointError(
            f"there is no checkpoint folder {source}",
            "the pieces to merge lie in a folder",
            "check the path",
        )
    if remove and source.resolve() in (target.resolve(), *target.resolve().parents):
        raise ConfigError(
            f"the output {target} lies in {source}, which is to be removed",
            "it would be deleted with it",
            "write it somewhere else, or leave --remove_checkpoint_dir out",
        )


def _damaged(folder: Path, reason: BaseException) -> CheckpointError:
    first = str(reason).strip().splitlines()[0] if str(reason).strip() else type(reason).__name__
    return CheckpointError(
        f"the pieces in {folder} cannot be read: {first[:300]}",
        "their list (.metadata) or one of the files is absent or damaged",
        "merge another checkpoint",
    )

"""Files of weights: safetensors, or torch's own; whole, or in shards with an index.

A safetensors file is a header (JSON: name, dtype, shape, bytes from-to) and the tensors' bytes.
We write it ourselves, straight from the tensors' memory: several times as fast as through the
library's copies, and without holding a second model.

Source: the safetensors format, https://huggingface.co/docs/safetensors.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from notebook_accel.checkpoint import manifest
from notebook_accel.checkpoint.manifest import in_one_step
from notebook_accel.checkpoint.names import identity, load_plain
from notebook_accel.checkpoint.pickled import load_pickled
from notebook_accel.config.words import kind_of
from notebook_accel.errors import CheckpointError, ConfigError
from notebook_accel.events import tasks
from notebook_accel.ranks.collectives import bytes_of

SAFE, UNSAFE = "model", "pytorch_model"
SAFE_END, UNSAFE_END = ".safetensors", ".bin"
INDEX_END = ".index.json"
_EXPORTED = re.compile(
    rf"({SAFE}(-\d{{5}}-of-\d{{5}})?{re.escape(SAFE_END)}"
    rf"|{UNSAFE}(-\d{{5}}-of-\d{{5}})?{re.escape(UNSAFE_END)})({re.escape(INDEX_END)})?"
)
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY_UNITS = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def file_name(safe: bool, index: int = 0) -> str:
    """How the file of model ``index`` is called in a checkpoint."""
    return nth_file(*((SAFE, SAFE_END) if safe else (UNSAFE, UNSAFE_END)), index)


def nth_file(stem: str, end: str, index: int) -> str:
    """How one of several files alike is called: the first, of ``index`` 0, has no number."""
    return f"{stem}_{index}{end}" if index else f"{stem}{end}"


def models_in(has: Callable[[str], bool], first: int = 0) -> Iterator[int]:
    """Count the models of a checkpoint that ``has`` files, from ``first`` on."""
    return numbered(has, partial(file_name, True), partial(file_name, False), first=first)


def numbered(
    has: Callable[[str], bool], *names: Callable[[int], str], first: int = 0
) -> Iterator[int]:
    """Count from ``first`` as long as a checkpoint ``has`` a file by one of ``names``."""
    return takewhile(lambda index: any(has(name(index)) for name in names), count(first))


def write(
    state: Mapping[str, Any],
    path: Path,
    safe: bool = True,
    wrote: Callable[[int], None] = lambda num_bytes: None,
) -> None:
    """Write a state dict to ``path``; ``wrote`` hears of bytes as they are written.

    Errors: CheckpointError, if ``safe``, for what safetensors cannot hold.
    """
    if safe:
        _write_safetensors(state, path, wrote)
    else:
        torch.save(dict(state), path)
        wrote(sum(map(size_of, state.values())))


def read(path: Path) -> dict[str, Any]:
    """Read a state dict; its tensors are backed by the file until somebody copies them.

    Errors: CheckpointError for a file that cannot be read.
    """
    if SAFE_END in path.name:  # maybe not at its end: a staged file
        try:
            return load_file(path)
        except (SafetensorError, OSError) as reason:
            raise CheckpointError(
                f"{path} cannot be read: {reason}",
                "it is absent, damaged, or not a safetensors file",
                "load another checkpoint",
            ) from reason
    found: dict[str, Any] = load_pickled(path)
    return found


def without_repeats(state: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out tensors that are the same as one before (tied weights)."""
    seen: set[Any] = set()
    kept = {}
    for name, tensor in state.items():
        if isinstance(tensor, Tensor):
            mark = identity(tensor)
            if mark in seen:
                continue
            seen.add(mark)
        kept[name] = tensor
    return kept


def export(state: Mapping[str, Any], folder: Path, max_shard_size: int | str, safe: bool) -> None:
    """Write a model's weights for others: one file, or shards and an index if it is larger.

    Tied tensors are written under each of their names, so that the plain module loads the file.
    What an earlier export left there, in whatever shards or format, is removed.

    Units: ``max_shard_size`` in bytes, or as "5GB", "200MiB".
    """
    if folder.is_file():
        raise CheckpointError(
            f"{folder} is a file",
            "save_model() writes its files into a folder",
            "give a folder; accelerator.save(state, file) writes one file",
        )
    folder.mkdir(parents=True, exist_ok=True)
    stem, end = (SAFE, SAFE_END) if safe else (UNSAFE, UNSAFE_END)
    shards = _shards(state, num_bytes(max_shard_size))
    names = [f"{stem}{end}"]
    if len(shards) > 1:
        total = len(shards)
        names = [f"{stem}-{i + 1:05d}-of-{total:05d}{end}" for i in range(total)]
    with tasks.counting("saving model", sum(map(size_of, state.values())), "bytes") as wrote:
        for name, shard in zip(names, shards, strict=True):
            in_one_step(folder / name, partial(write, shard, safe=safe, wrote=wrote))
    index = folder / f"{stem}{end}{INDEX_END}"
    if len(shards) > 1:
        where = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        size = sum(map(size_of, state.values()))
        text = json.dumps({"metadata": {"total_size": size}, "weight_map": where}, indent=2)
        in_one_step(index, lambda beside: beside.write_text(text))
        names.append(index.name)
    for path in folder.iterdir():
        if _EXPORTED.fullmatch(path.name) and path.name not in names:
            path.unlink()


def load_weights(
    model: nn.Module, source: Mapping[str, Any] | str | os.PathLike[str], strict: bool = True
) -> list[str]:
    """Load weights into a model, plain or prepared, from wherever they were saved.

    ``source`` is a state dict, a file (safetensors, or by torch.save), or a folder that
    ``save_model``, ``save_state`` or Accelerate wrote. Names may carry the prefixes of wrappers
    ("module.", "_orig_mod."): they are left out, with a warning. Gives the names that were not
    there, none when ``strict``.

    Ranks: each for itself: all ranks call it, or the model differs between them.
    Errors: CheckpointError for what cannot be read or does not fit.
    """
    if isinstance(source, Mapping):
        return load_plain(model, source, strict)
    path = Path(source)
    with tasks.task("loading weights"):
        return load_plain(model, read_folder(path) if path.is_dir() else read(path), strict)


def num_bytes(size: int | str) -> int:
    """Read a size such as "10GB" (10**10) or "1GiB" (2**30).

    Errors: ConfigError for what is not a size.
    """
    if isinstance(size, int) and size > 0:
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B?)\s*", str(size).upper())
    unit = (_UNITS | _BINARY_UNITS).get(match[2]) if match else None
    if match is None or unit is None or float(match[1]) * unit < 1:
        raise ConfigError(
            f"max_shard_size={size!r} is not a size",
            "it is a number of bytes, with a unit or without",
            'write for example max_shard_size="5GB" (or "5GiB")',
        )
    return int(float(match[1]) * unit)


def _write_safetensors(state: Mapping[str, Any], path: Path, wrote: Callable[[int], None]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in state.items():
        if not _is_plain(tensor):
            raise _not_safe(name, tensor)
        end = at + size_of(tensor)
        shape = list(tensor.shape)
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in state.values():  # one at a time: a GPU's tensors pass through here too
            wrote(file.write(bytes_of(tensor)))


def _is_plain(value: Any) -> bool:
    """Whether safetensors can hold ``value``."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return False
    return value.dtype in _DTYPES and not value.is_meta


def _not_safe(name: str, value: Any) -> CheckpointError:
    what = kind_of(value)
    if isinstance(value, Tensor):
        what = f"a {value.dtype} tensor ({value.layout})"
    if isinstance(value, Tensor) and value.is_meta:
        return CheckpointError(
            f"{name!r} is on the meta device: it has no values",
            "the model was built without its weights",
            "load its weights, or leave it out, before saving",
        )
    return CheckpointError(
        f"{name!r} is {what}, which a safetensors file cannot hold",
        "safetensors knows dense tensors of real numbers only",
        "pass safe_serialization=False to write the file by torch.save",
    )


def size_of(tensor: Any) -> int:
    """The bytes of a tensor; 0 for what is none."""
    return tensor.numel() * tensor.element_size() if isinstance(tensor, Tensor) else 0


def _shards(state: Mapping[str, Any], limit: int) -> list[dict[str, Any]]:
    """Cut a state dict, in its order, into parts of at most ``limit`` bytes where possible."""
    shards: list[dict[str, Any]] = [{}]
    held = 0
    for name, tensor in state.items():
        size = size_of(tensor)
        if shards[-1] and held + size > limit:
            shards.append({})
            held = 0
        shards[-1][name] = tensor
        held += size
    return shards


def read_folder(folder: Path) -> dict[str, Any]:
    """Read the weights of one model in a folder, whoever wrote it: a file, or all of an index.

    Errors: CheckpointError for a folder without weights.
    """
    for stem, end in ((SAFE, SAFE_END), (UNSAFE, UNSAFE_END)):
        index = folder / f"{stem}{end}{INDEX_END}"
        if index.exists():
            names = set(json.loads(index.read_text())["weight_map"].values())
            return {k: v for name in sorted(names) for k, v in read(folder / name).items()}
        if (folder / manifest.NAME).exists():
            whole = manifest.read(folder)
            if whole is not None and f"{stem}{end}" in whole.files:
                return read(whole.where(folder, f"{stem}{end}"))
        elif (folder / f"{stem}{end}").exists():
            return read(folder / f"{stem}{end}")
    raise CheckpointError(
        f"{folder} holds no weights",
        f"neither {SAFE}{SAFE_END}, {UNSAFE}{UNSAFE_END} nor an index of shards is there",
        "give a folder written by save_model() or save_state(), or the file itself",
    )

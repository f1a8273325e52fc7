"""Configuration files, ours and Accelerate's, YAML and JSON: one reader for all, and a writer."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from notebook_accel.config import accelerates
from notebook_accel.config.catalog.setting import Setting
from notebook_accel.config.documents import Entry, entries
from notebook_accel.config.places import at_home, default_path, find_default, named_or_default
from notebook_accel.config.settings import SETTINGS, by_key, nearest
from notebook_accel.config.sources import Source
from notebook_accel.config.values import joint
from notebook_accel.errors import ConfigError

if TYPE_CHECKING:
    from notebook_accel.config.resolve import RunConfig

__all__ = [
    "ConfigFile",
    "default_path",
    "find_default",
    "named_or_default",
    "problems",
    "read",
    "write",
]

# What keys inside a block may leave out.
_PREFIXES = {
    "fsdp_config": "fsdp_",
    "deepspeed_config": "deepspeed_",
    "parallelism_config": "parallelism_config_",
    "megatron_lm_config": "megatron_lm_",
    "mpirun_config": "mpirun_",
    "dynamo_config": "dynamo_",
    "fp8_config": "fp8_",
}
_AXES, _USE_AXES = "parallelism_config_", "use_parallelism_config"
# What distributed_type, use_cpu and a block say in Accelerate's files.
_SAID_OTHERWISE = ("device", "strategy", "use_parallelism_config", "sagemaker_distributed_type")


@dataclass(frozen=True)
class ConfigFile:
    """What a file says: values of settings, and the line of each."""

    path: Path
    values: Mapping[str, Any]
    lines: Mapping[str, int] = field(default_factory=dict)

    def layer(self) -> dict[str, tuple[Any, Source]]:
        """Give its values, each with its place."""
        return {
            name: (value, Source("file", "", str(self.path), self.lines.get(name, 0)))
            for name, value in self.values.items()
        }


def read(path: str | os.PathLike[str]) -> ConfigFile:
    """Read a configuration file, ours or Accelerate's.

    Errors: ConfigError with the file and the line; for an unknown key, with the nearest known one.
    """
    file, wrong = _judge(at_home(path))
    if wrong:
        raise wrong[0]
    return file


def problems(path: str | os.PathLike[str]) -> list[ConfigError]:
    """List all that is wrong with a configuration file, instead of the first thing only."""
    from notebook_accel.config.resolve import resolve

    try:
        file, wrong = _judge(at_home(path))
        if not wrong:
            resolve({}, {}, file)
    except ConfigError as error:
        return [error]
    return wrong


def write(
    config: RunConfig, path: str | os.PathLike[str], accelerate: bool = False
) -> tuple[str, ...]:
    """Write what ``config`` was given, as YAML or, under a name that ends so, JSON.

    With ``accelerate`` in Accelerate's own keys. Gives the names of the settings that the file has
    no place for: secrets, and in Accelerate's what only we have. The file is whole or not there.

    Errors: ConfigError where it cannot be written.
    """
    tree, left_out = _accelerates_tree(config) if accelerate else _our_tree(config)
    path = at_home(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(_text(tree, path.suffix), encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        with contextlib.suppress(OSError):  # there may be no folder that it could lie in
            beside.unlink()
        raise ConfigError(
            f"{path} cannot be written: {(error.strerror or str(error)).lower()}",
            "settings are kept in a file",
            "name a file in a folder that you may write to",
        ) from None
    return left_out


def _judge(path: Path) -> tuple[ConfigFile, list[ConfigError]]:
    found: dict[str, tuple[Any, Entry]] = {}
    wrong: list[ConfigError] = []
    listed = entries(path)
    _refuse_deepspeeds_own(path, listed)
    blocks: set[str] = set()
    for entry in listed:
        block = entry.key.rpartition(".")[0]
        if block and block not in _PREFIXES:
            if block not in blocks:
                wrong.append(_unknown_block(path, entry, block))
            blocks.add(block)
            continue
        try:
            for name, value in _meaning(path, entry):
                _add(path, found, name, value, entry)
        except ConfigError as error:
            wrong.append(error)
    values = {name: value for name, (value, _) in found.items()}
    lines = {name: entry.line for name, (_, entry) in found.items()}
    return ConfigFile(path, values, lines), wrong


def _meaning(path: Path, entry: Entry) -> Iterator[tuple[str, Any]]:
    block, _, inside = entry.key.rpartition(".")
    if not block and entry.key in _PREFIXES:
        if not entry.value:
            return  # a block with nothing in it
        raise ConfigError(
            f"{path}, line {entry.line}: {entry.key} is {entry.value!r}",
            "it is a block: its settings stand below it, indented",
            f"write the settings of {entry.key} below it, or {{}} for none",
        )
    key = next((key for key in _spellings(block, inside) if key in by_key()), None)
    if key is None:
        raise _unknown_key(path, entry, block, inside)
    one = by_key()[key]
    yield from accelerates.translate(
        one, key, entry.value, Source("file", key, str(path), entry.line)
    )


def _add(
    path: Path, found: dict[str, tuple[Any, Entry]], name: str, value: Any, entry: Entry
) -> None:
    """Add what an entry says, unless an earlier one excludes it."""
    if name in found:
        before, other = found[name]
        together = joint(before, value)
        if together is None:
            raise ConfigError(
                f"{path}, line {entry.line}: {entry.key} says {name} is {value!r}, but "
                f"{other.key} on line {other.line} says {before!r}",
                "both mean the same setting, and nobody could say which of them counts",
                "delete one of the two lines",
            )
        if together == before:
            return
    found[name] = (value, entry)


def _spellings(block: str, inside: str) -> list[str]:
    if not block:
        return [inside]
    return [f"{block}.{inside}", f"{block}.{_PREFIXES.get(block, '')}{inside}"]


def _unknown_block(path: Path, entry: Entry, block: str) -> ConfigError:
    if block in accelerates.DROPPED:
        return _dropped(path, entry, block)
    near = nearest(block, _PREFIXES)
    return ConfigError(
        f"{path}, line {entry.line}: there are no settings in a block {block}",
        f"the blocks of a file are {', '.join(_PREFIXES)}",
        f"did you mean {near}?" if near else "delete that block",
    )


def _dropped(path: Path, entry: Entry, key: str) -> ConfigError:
    return ConfigError(
        f"{path}, line {entry.line}: {key} is of an older Accelerate",
        accelerates.DROPPED[key],
        f"delete {key} with all below it",
    )


def _unknown_key(path: Path, entry: Entry, block: str, inside: str) -> ConfigError:
    if not block and inside in accelerates.DROPPED:
        return _dropped(path, entry, inside)
    known = _keys_of(block)
    near = nearest(inside, known) or nearest(_PREFIXES.get(block, "") + inside, known)
    if not near and (elsewhere := nearest(inside, _all_keys())):
        near = f"{elsewhere} in {_all_keys()[elsewhere]}"
    return ConfigError(
        f"{path}, line {entry.line}: there is no setting {entry.key}",
        f"{block or 'a file'} has the keys that `notebook-accel config show --all` lists",
        f"did you mean {near}?" if near else "delete that line",
    )


@functools.cache
def _keys_of(block: str) -> tuple[str, ...]:
    if not block:
        return (*(key for key in by_key() if "." not in key), *_PREFIXES)
    return tuple(key.rpartition(".")[2] for key in by_key() if key.startswith(f"{block}."))


@functools.cache
def _all_keys() -> Mapping[str, str]:
    split = (key.rpartition(".") for key in by_key())
    return {inside: block or "the file itself" for block, _, inside in split}


def _refuse_deepspeeds_own(path: Path, listed: list[Entry]) -> None:
    own = [entry for entry in listed if entry.key in accelerates.DEEPSPEEDS]
    if own:
        raise ConfigError(
            f"{path}, line {own[0].line}: {own[0].key} is a key of DeepSpeed's own configuration",
            "a configuration of a launch names such a file, and is none itself",
            f"pass it as `--use_deepspeed --deepspeed_config_file {path}`, or as "
            f'RunConfig(strategy="deepspeed", deepspeed_config_file="{path}")',
        )


def _our_tree(config: RunConfig) -> tuple[dict[str, Any], tuple[str, ...]]:
    tree: dict[str, Any] = {}
    secret = []
    for name, value in config.given().items():
        one = SETTINGS[name]
        if one.secret:
            secret.append(name)
        else:
            _put(tree, one.yaml if _lies_in_a_block(one) else name, value)
    if any(name.startswith(_AXES) for name in config.given()):
        tree[_USE_AXES] = config[_USE_AXES]
    return tree, tuple(secret)


def _lies_in_a_block(one: Setting) -> bool:
    return "." in one.yaml and one.section != "run"


def _accelerates_tree(config: RunConfig) -> tuple[dict[str, Any], tuple[str, ...]]:
    total = config["num_processes"]
    tree: dict[str, Any] = {
        "compute_environment": config["compute_environment"],
        "distributed_type": accelerates.world(config),
        "mixed_precision": str(config["mixed_precision"]),
        "use_cpu": config["device"] == "cpu",
        "debug": config["debug"],
        "num_processes": -1 if total is None else total,
        "num_machines": config["num_nodes"],
        "machine_rank": config["node_rank"],
        "gpu_ids": accelerates.gpu_ids(config["device"]),
    }
    if config["compute_environment"] != "LOCAL_MACHINE":  # whose files know nothing of machines
        for key in ("debug", "num_processes", "machine_rank", "gpu_ids"):
            del tree[key]
    left_out = []
    for name, value in config.given().items():
        one = SETTINGS[name]
        is_idle = name.startswith(_AXES) and not config[_USE_AXES]  # a block would put it to use
        if one.yaml and not one.secret and not is_idle:
            _put(tree, one.yaml, value.upper() if name == "dynamo_backend" else value)
        elif name not in _SAID_OTHERWISE:
            left_out.append(name)
    if config[_USE_AXES] and "parallelism_config" not in tree:
        left_out.append(_USE_AXES)
    return tree, tuple(left_out)


def _put(tree: dict[str, Any], path: str, value: Any) -> None:
    block, _, key = path.rpartition(".")
    place = tree.setdefault(block, {}) if block else tree
    place[key] = list(value) if isinstance(value, tuple) else value


def _text(tree: dict[str, Any], suffix: str) -> str:
    if suffix == ".json":
        return json.dumps(tree, indent=2) + "\n"
    import yaml

    text: str = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    return text

"""``notebook-accel to-fsdp2``: rewrite a configuration for FSDP 1 as one for FSDP 2."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from notebook_accel.config import store
from notebook_accel.config.documents import entries
from notebook_accel.config.fsdp import RESHARDS
from notebook_accel.config.settings import SETTINGS
from notebook_accel.errors import ConfigError

_GONE = {
    "fsdp_backward_prefetch": "FSDP 2 prefetches by itself",
    "fsdp_forward_prefetch": "FSDP 2 prefetches by itself",
    "fsdp_sync_module_states": "every rank begins with rank 0's parameters anyway",
    "fsdp_use_orig_params": "parameters keep their names and shapes anyway",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument("--config_file", metavar="PATH", required=True, help="what to rewrite")
    parser.add_argument("--overwrite", action="store_true", help="write over it")
    parser.add_argument("--output_file", metavar="PATH", help="write here instead")


def run(options: argparse.Namespace) -> int:
    """Write the new file, and say what changed."""
    source = Path(options.config_file).expanduser()
    target = Path(options.output_file).expanduser() if options.output_file else source
    if target == source and not options.overwrite:
        raise ConfigError(
            f"nothing says where to write: {source} would be overwritten",
            "a configuration is not changed unasked",
            "pass --output_file PATH, or --overwrite",
        )
    store.read(source)  # names what is wrong in it, with the line
    tree = _tree(source)
    changed = convert(tree, source)
    text = json.dumps(tree, indent=2) + "\n" if target.suffix == ".json" else _yaml(tree)
    beside = target.with_name(f".{target.name}.part{target.suffix}")
    beside.write_text(text, encoding="utf-8")
    store.read(beside)
    os.replace(beside, target)
    print(f"written to {target}:")
    print("\n".join(f"  {line}" for line in changed))
    return 0


def convert(tree: dict[str, Any], source: Path) -> list[str]:
    """Rewrite the tree of a file in place; give what changed, a line each.

    Errors: ConfigError for what FSDP 2 has no word for, and for files without FSDP 1.
    """
    block = tree.get("fsdp_config")
    if not isinstance(block, dict) or not block:
        raise ConfigError(
            f"{source} has no fsdp_config",
            "only settings of FSDP can be rewritten",
            "choose FSDP first: notebook-accel config",
        )
    named = {name if name.startswith("fsdp_") else f"fsdp_{name}": name for name in block}
    if str(block.get(named.get("fsdp_version", ""), 1)) == "2":
        raise ConfigError(
            f"{source} is for FSDP 2 already", "its fsdp_version is 2", "use it as it is"
        )
    new: dict[str, Any] = {"fsdp_version": 2}
    changed = ["fsdp_version: 2"]
    for full, name in named.items():
        value = block[name]
        if full == "fsdp_version":
            continue
        if full == "fsdp_sharding_strategy":
            new["fsdp_reshard_after_forward"] = _reshards(value, source)
            word = "true" if new["fsdp_reshard_after_forward"] else "false"
            changed.append(f"{full}: {value} -> fsdp_reshard_after_forward: {word}")
            changed += _about_copies(value)
        elif full in _GONE:
            changed.append(f"{full}: {value} -> left out ({_GONE[full]})")
        elif full == "fsdp_state_dict_type" and str(value).upper() == "LOCAL_STATE_DICT":
            new[full] = "SHARDED_STATE_DICT"
            changed.append(f"{full}: {value} -> SHARDED_STATE_DICT")
        else:
            new[full] = value
    tree["fsdp_config"] = new
    return changed


def _reshards(value: Any, source: Path) -> bool:
    word = _word(value)
    if word != "NO_SHARD":
        return word in RESHARDS
    raise ConfigError(
        f"{source}: fsdp_sharding_strategy: {value} has no counterpart in FSDP 2",
        "FSDP 2 always cuts models into pieces",
        "for a whole copy on each process leave fsdp_config out: that is data parallelism",
    )


def _word(value: Any) -> str:
    """Read a sharding strategy: its name, or the number that torch gave it."""
    text = str(value).upper()
    return str(SETTINGS["fsdp_sharding_strategy"].spellings.get(text, text))


def _about_copies(value: Any) -> list[str]:
    if not _word(value).startswith("HYBRID"):
        return []
    return ["set parallelism_config_dp_replicate_size to the number of whole copies (machines)"]


def _tree(path: Path) -> dict[str, Any]:
    """Read a file without a schema; a bare ``no`` stays the word that it is."""
    import yaml

    text = path.read_text(encoding="utf-8")
    tree: dict[str, Any] = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    for entry in entries(path):
        block, _, name = entry.key.rpartition(".")
        home = tree[block] if block else tree
        if isinstance(home[name], bool) and str(entry.value).lower() not in ("true", "false"):
            home[name] = str(entry.value)
    return tree


def _yaml(tree: Mapping[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(dict(tree), sort_keys=False)

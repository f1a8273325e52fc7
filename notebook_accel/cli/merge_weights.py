"""``notebook-accel merge-weights``: from a checkpoint in pieces to one file of weights."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from notebook_accel.cli.child import call
from notebook_accel.cli.estimate_memory import size
from notebook_accel.errors import ConfigError


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    parser.add_argument(
        "checkpoint_directory",
        help="a folder of save_state(), of torch.distributed.checkpoint (FSDP), or of shards with "
        "an index",
    )
    parser.add_argument(
        "output_path", help="the folder to write to, or a file ending in .safetensors or .bin"
    )
    parser.add_argument(
        "--unsafe_serialization",
        action="store_true",
        help="write by torch.save instead of safetensors",
    )
    parser.add_argument(
        "--remove_checkpoint_dir",
        action="store_true",
        help="delete the checkpoint once all is written",
    )
    parser.add_argument(
        "--max_shard_size",
        metavar="SIZE",
        help="cut the output into files of at most this size, as 5GB (default: one file)",
    )


def run(options: argparse.Namespace) -> int:
    """Merge in a child and say what was written."""
    output = Path(options.output_path)
    if _looks_like_a_file(options.output_path) and not output.is_dir():
        raise ConfigError(
            f"{output} is neither a folder nor a file of weights",
            "a file of weights ends in .safetensors or .bin, and anything else is a folder",
            f"write {output.with_suffix('.safetensors')}, or {output}{os.sep} for a folder",
        )
    was_there = output.is_file() or (output.is_dir() and any(output.iterdir()))
    told = call(
        "notebook_accel.checkpoint.consolidate:merge",
        checkpoint_directory=options.checkpoint_directory,
        output_path=options.output_path,
        safe=not options.unsafe_serialization,
        remove=options.remove_checkpoint_dir,
        max_shard_size=options.max_shard_size,
    )
    if was_there:
        print(f"note: {output} was there already; its weights were replaced", file=sys.stderr)
    for one in told["written"]:
        print(f"{one['path']}: {one['tensors']} tensors, {size(one['bytes'])}")
    if told["removed"]:
        print(f"removed {told['removed']}")
    return 0


def _looks_like_a_file(name: str) -> bool:
    """Tell a file's name from a folder's, as v1.5: an ending of letters, and no slash after it."""
    ending = Path(name).suffix[1:]
    return ending.isalpha() and ending not in ("safetensors", "bin") and not name.endswith(os.sep)

"""The command ``notebook-accel``: one file a command, imported only when it is asked for."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from notebook_accel import __version__

# name -> what it does. notebook_accel.cli.<name> (dashes as underscores) has
# configure(parser) and run(options) -> exit code.
COMMANDS = {
    "env": "print what a bug report needs: versions, devices, cores",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: this process's) and return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog="notebook-accel",
        description="Train a PyTorch loop on everything you have, without leaving the notebook.",
    )
    parser.add_argument("--version", action="version", version=f"notebook-accel {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, help in COMMANDS.items():
        command = commands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
        if words[:1] == [name]:
            module = importlib.import_module(f"notebook_accel.cli.{name.replace('-', '_')}")
            module.configure(command)
            command.set_defaults(run=module.run)
    options = parser.parse_args(words)
    code: int = options.run(options)
    return code

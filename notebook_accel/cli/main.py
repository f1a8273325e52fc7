"""The command ``notebook-accel``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from notebook_accel import __version__
from notebook_accel.cli.env import report


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: this process's) and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="notebook-accel",
        description="Train a PyTorch loop on everything you have, without leaving the notebook.",
    )
    parser.add_argument("--version", action="version", version=f"notebook-accel {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands.add_parser("env", help="print what a bug report needs: versions, devices, cores")
    parser.parse_args(argv)
    print(report())
    return 0

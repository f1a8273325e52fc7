"""The command ``notebook-accel``: one file a command, imported only when it is asked for."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from notebook_accel import __version__
from notebook_accel.cli.parsing import Parser, did_you_mean, sentence
from notebook_accel.errors import ConfigError, Explained, NotHere

PROG = "notebook-accel"
ABOUT = "Train a PyTorch loop on everything you have, without leaving the notebook."
# What for -> name -> what it does. notebook_accel.cli.<name> (dashes as underscores) has
# configure(parser) and run(options) -> exit code.
GROUPS = {
    "run": {
        "demo": "train a small classifier here on two processes, and watch it",
        "join": "run this machine's part of a notebook that waits for other machines",
        "launch": "run a script on one process, on several, or on several machines",
    },
    "set up": {
        "config": "ask what to train on and keep the answers in a file",
        "completion": "print a script by which a shell completes commands",
    },
    "models": {
        "estimate-memory": "tell what a model occupies, alone and while it trains",
        "merge-weights": "write the weights of a checkpoint in pieces as one file",
    },
    "find out": {
        "doctor": "find what stands in the way of training on several processes here",
        "test": "train a little here, as configured, and check the result",
        "env": "print what a bug report needs: versions, devices, cores",
    },
    "coming from Accelerate": {
        "to-fsdp2": "rewrite a configuration for FSDP 1 as one for FSDP 2",
        "tpu-config": "run commands on the hosts of a TPU pod: not here yet",
    },
}
COMMANDS = {name: help for group in GROUPS.values() for name, help in group.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: this process's) and return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        print(f"{PROG} {__version__}")
        return 0
    if words[0] not in COMMANDS:
        print(f"{PROG}: {_unknown(words)}", file=sys.stderr)
        return 2
    parser = Parser(prog=f"{PROG} {words[0]}", description=sentence(COMMANDS[words[0]]))
    module = command(words[0])
    module.configure(parser)
    return _finish(module, parser.parse_args(words[1:]))


def command(name: str) -> Any:
    """Import the module of a command."""
    return importlib.import_module(f"notebook_accel.cli.{name.replace('-', '_')}")


def overview() -> str:
    """List all commands, by what they are for."""
    width = max(map(len, COMMANDS)) + 2
    lines = [f"usage: {PROG} COMMAND [options]", "", ABOUT]
    for title, group in GROUPS.items():
        lines += ["", f"{title}:"]
        for name, help in group.items():
            head, below = f"  {name:<{width}}", " " * (width + 2)
            lines.append(textwrap.fill(help, 80, initial_indent=head, subsequent_indent=below))
    return "\n".join([*lines, "", f"{PROG} COMMAND --help tells a command's options."])


def _unknown(words: list[str]) -> str:
    """Say that the first word is no command, and what was probably meant."""
    word, fix = words[0], f"{PROG} --help"
    kind = "option" if word.startswith("-") else "command"
    near = did_you_mean(word, [*COMMANDS, "--help", "--version"])
    if not near and any(other.endswith(".py") for other in words):
        fix = f"{PROG} launch {shlex.join(words)}"
    return f"unknown {kind} {word}{near}\n  do:  {fix}"


def _finish(module: Any, options: Any) -> int:
    """Run the command; what went wrong becomes a message and an exit code, not a traceback."""
    try:
        code: int = module.run(options)
        sys.stdout.flush()
        return code
    except Explained as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2 if isinstance(error, (ConfigError, NotHere)) else 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader (head, less) went away: nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141

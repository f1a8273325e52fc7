"""``notebook-accel completion``: a script by which a shell completes our commands and options."""

from __future__ import annotations

import argparse

from notebook_accel.cli.main import ABOUT, COMMANDS, PROG, command
from notebook_accel.cli.parsing import Parser, one_spelling, parsers, sentence
from notebook_accel.config.settings import SETTINGS
from notebook_accel.errors import MissingPackage

_SHELLS = ("bash", "zsh", "tcsh")
_FILES = ("program", "checkpoint_directory", "output_path", "model_name")
_EXAMPLE = (
    "for bash: notebook-accel completion bash > "
    "~/.local/share/bash-completion/completions/notebook-accel"
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    parser.add_argument("shell", choices=_SHELLS, help="the shell: bash, zsh or tcsh")
    parser.epilog = _EXAMPLE


def run(options: argparse.Namespace) -> int:
    """Print the script.

    Errors: MissingPackage without shtab.
    """
    try:
        import shtab
    except ImportError:
        raise MissingPackage(
            "shtab is not installed",
            "it writes the script; completing itself needs nothing but the shell",
            "pip install 'notebook-accel[completion]'",
        ) from None
    parser = everything()
    for each in parsers(parser):
        for action in each._actions:
            if action.metavar == "PATH" or action.dest in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            _, _, setting = action.dest.partition("setting:")
            if setting and action.nargs != 0:
                action.choices = SETTINGS[setting].choices or None
    print(shtab.complete(parser, options.shell))
    return 0


def everything() -> Parser:
    """Make one parser with all commands below it, and every option that they take."""
    whole = Parser(prog=PROG, description=ABOUT)
    below = whole.add_subparsers(metavar="COMMAND")
    for name, help in COMMANDS.items():
        parser = below.add_parser(name, help=help, description=sentence(help))
        command(name).configure(parser)
    for each in parsers(whole):
        for action in each._actions:
            if action.help == argparse.SUPPRESS and not _takes_back(action):
                action.help = ""  # left out of --help for length only
            action.option_strings = one_spelling(action.option_strings)
    return whole


def _takes_back(action: argparse.Action) -> bool:
    return any(name.startswith("--no_") for name in action.option_strings)

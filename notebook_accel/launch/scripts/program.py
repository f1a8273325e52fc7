"""What a person wants to run: a script, a module or any program, with words of its own."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from notebook_accel.errors import ConfigError, LaunchError

_SETTINGS = (".yaml", ".yml", ".json")
_SHELLS = (".sh", ".bash", ".zsh")


@dataclass(frozen=True)
class Program:
    """``name`` and its ``arguments``, and ``how`` it is run."""

    how: Literal["script", "module", "program"]
    name: str
    arguments: tuple[str, ...] = ()

    def words(self, unbuffered: bool = False) -> tuple[str, ...]:
        """Give the whole command line, to be run in this process's directory.

        ``unbuffered``: Python writes what it prints at once.
        """
        if self.how == "program":
            return (shutil.which(self.name) or self.name, *self.arguments)
        python = (sys.executable, *(["-u"] if unbuffered else []))
        how = ["-m"] if self.how == "module" else []
        return (*python, *how, self.name, *self.arguments)


def program(words: Sequence[str], is_module: bool, is_no_python: bool) -> Program:
    """Make a program of the words on the command line, the first of which is its name.

    Errors: ConfigError when there is none, or no such file or program.
    """
    if is_module and is_no_python:
        raise ConfigError(
            "-m and --no_python are both given",
            "a module is run by Python, and --no_python says that Python runs nothing",
            "leave one of them out",
        )
    if not words:
        raise ConfigError(
            "no script to launch",
            "the first word that is no option names it, and all after it is the script's own",
            "write notebook-accel launch [options] script.py [its arguments]",
        )
    name, *arguments = words
    if is_module:
        return Program("module", name, tuple(arguments))
    if is_no_python:
        if shutil.which(name) is None:
            raise ConfigError(
                f"there is no program {name!r}",
                "--no_python runs it as it is, and nothing on PATH that can be run has that name",
                "give its path, or leave --no_python out for a Python script",
            )
        return Program("program", name, tuple(arguments))
    if not os.path.exists(name):
        raise ConfigError(
            f"there is no script {name!r}",
            f"it is looked for from {os.getcwd()}",
            "give the path of a file; a module is launched by -m, another program by --no_python",
        )
    _refuse_others(name)
    return Program("script", name, tuple(arguments))


def _refuse_others(name: str) -> None:
    """Refuse a file that Python would read as a script, and that is none."""
    if name.endswith(_SETTINGS):
        raise ConfigError(
            f"{name} is no Python script",
            "the first word that is no option is the script, and this looks like settings",
            f"write notebook-accel launch --config_file {name} script.py",
        )
    with open(name, "rb") as file:
        first = file.readline(200)
    if name.endswith(_SHELLS) or (first.startswith(b"#!") and b"python" not in first):
        other = first.decode("utf-8", "replace").strip() or "its name"
        path = name if os.path.dirname(name) else os.path.join(".", name)
        raise ConfigError(
            f"{name} is no Python script",
            f"{other} says which program it is for, and a launch runs Python without --no_python",
            f"write notebook-accel launch --no_python {path}",
        )


def does_not_start(name: str, error: OSError) -> LaunchError:
    """Give the error for a program that the system refuses to run."""
    return LaunchError(
        f"{name} does not start: {error.strerror}",
        "the system refused to run it as a program",
        "look whether it is one: a text needs a first line like #!/bin/sh",
    )

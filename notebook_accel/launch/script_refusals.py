"""What cannot be written as a script, and why: each said once, with what to write instead."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from types import FunctionType
from typing import Any

from notebook_accel.config.settings import SETTINGS
from notebook_accel.config.words import kind_of
from notebook_accel.errors import ConfigError
from notebook_accel.events.records import Record

_AS_WITHOUT = {"DDP()", "SingleDevice()"}  # wishes that an Accelerator has anyway


def nothing_to_write(function: str, refused: Mapping[str, str]) -> ConfigError:
    """Make the error for what ``function`` uses and nothing can write down, with the reasons."""
    lines = "".join(f"\n    {name}: {why}" for name, why in refused.items())
    return ConfigError(
        f"{function} cannot be written as a script; these have no source:{lines}",
        "a script holds functions, classes, imports and plain values; anything else would have to "
        "be made again",
        f"make them inside {function}, or in a function that it calls, and launch it again",
    )


def refuse_nameless(function: Any, name: str) -> None:
    """Refuse to write down a call of what no ``def`` at the top of a script can define.

    Errors: ConfigError.
    """
    while isinstance(function, functools.partial):
        function = function.func
    if dataclasses.is_dataclass(function):  # made again from its fields
        return
    if inspect.ismethod(function):
        of = function.__self__
        kind = f"a method of {f'the class {of.__name__}' if isinstance(of, type) else kind_of(of)}"
    elif getattr(function, "__name__", "") == "<lambda>":
        kind = "a lambda"
    elif isinstance(function, (type, FunctionType)) or hasattr(function, "__wrapped__"):
        return
    else:
        kind = f"an object that can be called, {kind_of(function)}"
    raise ConfigError(
        f"{name} cannot be written as a script: it is {kind}",
        "a script calls a function by its name, and has no object of the notebook",
        "write a function that makes what it needs and does the same, def main(): ..., and launch "
        "that: notebook_launcher(main)",
    )


def refuse_wish(record: Record) -> None:
    """Refuse a strategy that no variable can say: an Accelerator of the script would not know it.

    Errors: ConfigError.
    """
    wish, function = str(record.config.get("strategy", "auto")), record.about.function
    if wish not in _AS_WITHOUT and wish not in SETTINGS["strategy"].choices:
        raise ConfigError(
            f"{function} was launched with strategy={wish}, which its script would not have",
            "the launch told it to the Accelerator; nobody tells it to that of a script",
            f"write Accelerator(strategy={wish}) in {function}, leave strategy= out of the launch, "
            "and launch it again",
        )

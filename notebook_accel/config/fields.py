"""What fields of a wish, a plugin or a handler may hold: said by name, when one is made."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from notebook_accel.config.schema import check_choice
from notebook_accel.errors import ConfigError


@dataclass(frozen=True)
class _Kind:
    """What a field is declared to be: who is one, what that is, and one to write."""

    has: Callable[[Any], bool]
    what: str
    example: str


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def _is_listed(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))


_TABLE = _Kind(lambda one: isinstance(one, Mapping), "a table of names and values", '{"name": 1}')
_KINDS = {
    "bool": _Kind(lambda one: isinstance(one, bool), "on or off", "True"),
    "int": _Kind(_is_whole, "a whole number", "2"),
    "float": _Kind(_is_number, "a number", "1.0"),
    "str": _Kind(lambda one: isinstance(one, str), "text", '"..."'),
    "os.PathLike": _Kind(lambda one: isinstance(one, os.PathLike), "a path", '"/folder"'),
    "dict": _TABLE,
    "Mapping": _TABLE,
    "list": _Kind(_is_listed, "a list", "[...]"),
    "tuple": _Kind(_is_listed, "a list", "[...]"),
    "Callable": _Kind(callable, "a function", "a function"),
}


def check_kinds(owner: Any) -> None:
    """Raise ConfigError for a field of the dataclass ``owner`` that is not what it is declared.

    "no" would be taken for on, True for one rank, and "25" would fail where nobody wrote it. A
    field that may be of another class is left to who reads it.
    """
    for one in fields(owner):
        names = [name for name in re.findall(r"(?:^|\| )([\w.]+)", str(one.type)) if name != "None"]
        kinds = [_KINDS[name] for name in names if name in _KINDS]
        value = getattr(owner, one.name)
        is_unset = value is None and str(one.type).endswith("None")
        if len(kinds) < len(names) or is_unset or any(kind.has(value) for kind in kinds):
            continue
        raise ConfigError(
            f"{type(owner).__name__}({one.name}={value!r:.80})",
            f"it is {' or '.join(kind.what for kind in kinds)}",
            f"write {one.name}={kinds[0].example}, or leave it out",
        )


def check_switches(owner: str, **given: Any) -> None:
    """Raise ConfigError for an argument of ``owner(...)`` that is neither on nor off.

    "no" would be on.
    """
    for name, value in given.items():
        if not _KINDS["bool"].has(value):
            raise ConfigError(
                f"{owner}({name}={value!r:.80})",
                f"it is {_KINDS['bool'].what}",
                f"write {name}=True, or {name}=False",
            )


def check_count(owner: str, name: str, value: Any, least: int = 1) -> None:
    """Raise ConfigError unless ``value``, of ``owner(name=...)``, is a number from ``least`` on."""
    if not _is_whole(value) or value < least:
        raise ConfigError(
            f"{owner}({name}={value!r})",
            f"{name} is a whole number of at least {least}",
            f"write {name}={least + 1}, or leave it out",
        )


def check_positive(owner: str, name: str, value: Any, what: str) -> None:
    """Raise ConfigError unless ``value``, of ``owner(name=...)``, is a number above zero.

    ``what`` says of what it is one.
    """
    if not _is_number(value) or not value > 0:
        raise ConfigError(
            f"{owner}({name}={value!r})",
            f"it is {what}, a number above zero",
            f"write {name}=1.0, or leave it out",
        )


def check_norm(owner: str, name: str, value: Any) -> None:
    """Raise ConfigError unless ``value`` is a norm that gradients can be cut to."""
    check_positive(owner, name, value, "the largest norm of the gradients of an update")


def read_words(owner: Any, **choices: Iterable[str]) -> None:
    """Let fields of ``owner``, frozen or not, be the words that ``choose`` reads of them.

    Errors: ConfigError listing them.
    """
    for name, words in choices.items():
        object.__setattr__(owner, name, choose(getattr(owner, name), name, words))


def names_of(owner: str, name: str, value: Any) -> tuple[str, ...]:
    """Take one name for a list of one.

    Errors: ConfigError for what is neither.
    """
    names = (value,) if isinstance(value, str) else tuple(value) if _is_listed(value) else (None,)
    if not all(isinstance(one, str) for one in names):
        raise ConfigError(
            f"{owner}({name}={value!r:.80})",
            "it is a list of names, as text",
            f'write {name}=["...", "..."], or leave it out',
        )
    return names


def choose(value: Any, name: str, choices: Iterable[str]) -> str:
    """Read one of ``choices``, given in whatever case, or as an enum of strings.

    Errors: ConfigError listing them.
    """
    word = str(getattr(value, "value", value)).lower()
    check_choice(name, word, tuple(choices))
    return word

"""What the declaration of a setting says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


class _Unsaid:
    """The mark of a default that stands in for a choice; such a value equals a plain one."""

    __slots__ = ()


class _UnsaidWord(_Unsaid, str):
    __slots__ = ()


class _UnsaidInt(_Unsaid, int):
    __slots__ = ()


class _UnsaidFloat(_Unsaid, float):
    __slots__ = ()


def unsaid(value: Any) -> Any:
    """Give a default, a word or a number, that remembers that nobody asked for it."""
    kinds: dict[type, type] = {str: _UnsaidWord, int: _UnsaidInt, float: _UnsaidFloat}
    return kinds[type(value)](value)


DEFAULT_PRECISION: str = unsaid("no")


def given(value: object) -> bool:
    """Tell whether a person chose ``value``, rather than a default standing in for a choice."""
    return not isinstance(value, _Unsaid)


@dataclass(frozen=True)
class Word:
    """A yes-or-no spelling of one value of a setting: ``--cpu`` stands for device="cpu"."""

    value: str
    flags: tuple[str, ...] = ()
    key: str = ""
    env: str = ""


@dataclass(frozen=True)
class Setting:
    """One setting: what it is, what it may be, and by what names it is known.

    ``name`` is how a ``RunConfig`` and an option call it. ``kind`` is "str", "int", "float",
    "bool", "list" or "dict"; None is possible when ``optional``. ``choices`` that lie in ``coming``
    are read and stored, and refused where they would be used; with ``others`` further words are
    taken too, and ``spellings`` are further words for some values. ``env`` names the variables
    that are read, the first one is also written; a list with several has one for each of its items.
    ``yaml`` is the path in Accelerate's file, "" if it has none; ``keys`` are further paths that
    are read. ``flags`` are further option names, ``words`` yes-or-no spellings of single values; an
    option of a bool that ``is_switch`` takes no value, and without ``has_option`` there is none.
    ``hardware`` lists the kinds of device it is
    for, () is any. ``question`` is what the wizard asks, "" is never, and only where the settings
    of ``when`` have these values ("several" is more than one). A ``secret`` is never stored or
    shown.
    """

    name: str
    section: str
    kind: str
    default: Any
    help: str
    choices: tuple[Any, ...] = ()
    coming: tuple[Any, ...] = ()
    others: bool = False
    spellings: Mapping[str, Any] = field(default_factory=dict)
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    optional: bool = False
    env: tuple[str, ...] = ()
    yaml: str = ""
    keys: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    words: tuple[Word, ...] = ()
    is_switch: bool = False
    has_option: bool = True
    hardware: tuple[str, ...] = ()
    question: str = ""
    when: Mapping[str, Any] = field(default_factory=dict)
    secret: bool = False


def table(
    section: str, prefix: str = "", env: str = "", yaml: str = "", **always: Any
) -> Callable[..., Setting]:
    """Give the maker of the rows of a table, whose names, variables and keys are built alike.

    A row ``("version", ...)`` of ``table("fsdp", "fsdp_", "FSDP_", "fsdp_config.")`` is the setting
    ``fsdp_version``, the variable ``FSDP_VERSION`` and the key ``fsdp_config.fsdp_version``. None
    is its value until somebody chooses, unless it says otherwise. ``always`` holds for all rows.
    """

    def row(name: str, kind: str, default: Any, help: str, **facts: Any) -> Setting:
        full = prefix + name
        facts = {**always, **facts}
        if env:
            facts.setdefault("env", (env + name.upper(),))
        if yaml:
            facts.setdefault("yaml", yaml + full)
        facts.setdefault("optional", default is None)
        return Setting(full, section, kind, default, help, **facts)

    return row

"""What a notebook's names mean at a launch: a later cell may give them other values.

Kept are definitions and modules, which are there anyway, and copies of small plain values: what a
script of the run could hold. Nothing of the notebook's data is kept alive.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

from notebook_accel.launch.sources import names_in, source_of

MOST_PARTS = 1000  # of one value
MOST_CHARACTERS = 20_000
DEEPEST = 20
_DEFINED = (FunctionType, BuiltinFunctionType, type, ModuleType, enum.Enum)
_NUMBERS = (bool, int, float, complex, range, type(None), type(...))
_HOLDERS = (list, tuple, set, frozenset)


@dataclasses.dataclass(frozen=True)
class Then:
    """The meaning of names in ``__main__`` at a launch, and the arguments as they were."""

    names: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def remember(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Then:
    """Remember what ``function`` uses of ``__main__``, and what that uses in turn."""
    try:
        names = _names(function, *args, *kwargs.values())
        return Then(
            names, tuple(map(_as_it_was, args)), {k: _as_it_was(v) for k, v in kwargs.items()}
        )
    except Exception:  # a person's object that does not like to be looked at: no reason to fail
        return Then({}, args, kwargs)


def _names(*used: Any) -> dict[str, Any]:
    names: dict[str, Any] = {}
    waiting, seen = list(used), set[int]()
    while waiting:
        one = waiting.pop()
        if isinstance(one, functools.partial):
            waiting += [one.func, *one.args, *one.keywords.values()]
        if id(one) in seen or not _is_of_main(one) or (source := source_of(one)) is None:
            continue
        seen.add(id(one))
        here = _globals_of(one)
        for name in names_in(source.text):
            if name in here and name not in names:
                waiting.append(here[name])
                if (twin := _twin(here[name])) is not _OTHER:
                    names[name] = twin
            elif name in source.scope:  # of a function around it
                waiting.append(source.scope[name])
    return names


class _Other(enum.Enum):
    """What is not kept, as a tensor."""

    OTHER = 0


_OTHER = _Other.OTHER


def _is_of_main(value: Any) -> bool:
    wraps = inspect.getattr_static(value, "__wrapped__", None) is not None
    is_definition = wraps or isinstance(value, (FunctionType, type))
    return is_definition and getattr(value, "__module__", None) == "__main__"


def _globals_of(value: Any) -> Mapping[str, Any]:
    inner = value if isinstance(value, type) else inspect.unwrap(value)
    found: Mapping[str, Any] = getattr(inner, "__globals__", vars(sys.modules["__main__"]))
    return found


def _as_it_was(value: Any) -> Any:
    twin = _twin(value)
    return value if twin is _OTHER else twin


def _twin(value: Any) -> Any:
    """Copy ``value`` as far as later cells could change it; ``_OTHER`` for what is not kept."""
    return _copied(value, [MOST_PARTS], DEEPEST)


def _copied(value: Any, room: list[int], depth: int) -> Any:
    kind = type(value)
    room[0] -= 1
    if room[0] < 0 or depth < 0:
        return _OTHER
    if kind in _NUMBERS or isinstance(value, (*_DEFINED, PurePath)) or _is_of_torch(value):
        return value
    if kind in (str, bytes):
        return value if len(value) <= MOST_CHARACTERS else _OTHER
    if kind in _HOLDERS and len(value) <= room[0]:
        parts = [_copied(one, room, depth - 1) for one in value]
        return _OTHER if _has_other(parts) else kind(parts)
    if kind is dict and len(value) <= room[0]:
        parts = [_copied(one, room, depth - 1) for pair in value.items() for one in pair]
        return _OTHER if _has_other(parts) else dict(zip(parts[::2], parts[1::2], strict=True))
    if kind in (SimpleNamespace, Namespace):
        fields = _copied(vars(value), room, depth - 1)
        return _OTHER if fields is _OTHER else kind(**fields)
    if dataclasses.is_dataclass(kind) and kind.__new__ is object.__new__:
        return _record(value, room, depth)
    return _OTHER


def _record(value: Any, room: list[int], depth: int) -> Any:
    """Copy a dataclass without running anything of its author's."""
    twin: Any = object.__new__(type(value))
    for one in dataclasses.fields(value):
        part = _copied(getattr(value, one.name, _OTHER), room, depth - 1)
        if part is _OTHER:
            return _OTHER
        object.__setattr__(twin, one.name, part)
    return twin


def _has_other(parts: list[Any]) -> bool:
    return any(one is _OTHER for one in parts)


def _is_of_torch(value: Any) -> bool:
    return type(value).__module__ == "torch" and type(value).__name__ in ("device", "dtype")

"""Variables of the notebook that a function changed in its worker only, where nobody will see it.

A rank is another process: what it appends to a list of the notebook's is gone with it. Looked at
in rank 0, before and after the call; told in the kernel when the run is over.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from notebook_accel.events import rails
from notebook_accel.events.model import LeftBehind
from notebook_accel.events.sinks import Sink

_STORE_GLOBAL = dis.opmap["STORE_GLOBAL"]
_SIZED = (list, dict, set)
_PLAIN = (int, float, str, bool, type(None))


@dataclass(frozen=True)
class Before:
    """The variables that ``function`` may change, as they were: sizes and plain values."""

    function: Any
    sizes: dict[str, int]
    values: dict[str, Any]

    def tell(self, rank: int, returned: Any) -> LeftBehind | None:
        """Make the event that tells of changes, if there are any."""
        found = self.changes(returned)
        code = self.function.__code__
        if not found:
            return None
        return LeftBehind(rank, code.co_name, code.co_filename, code.co_firstlineno, found)

    def changes(self, returned: Any) -> list[tuple[str, str, str]]:
        """Name what changed, with before and after; what is returned is not left behind."""
        world = self.function.__globals__
        found = []
        for name, size in self.sizes.items():
            now = world.get(name)
            if isinstance(now, _SIZED) and len(now) != size and not _holds(returned, now):
                found.append((name, f"{size}", f"{len(now)} items"))
        for name, value in self.values.items():
            now = world.get(name)
            if isinstance(now, _PLAIN) and now != value and not _holds(returned, now):
                found.append((name, f"{value!r:.40}", f"{now!r:.40}"))
        return found


def look(function: Callable[..., Any]) -> Before | None:
    """Note the variables that ``function``, and functions it names, may change."""
    while isinstance(function, functools.partial):
        function = function.func
    if not isinstance(function, FunctionType):
        return None
    world = function.__globals__
    sizes, values = {}, {}
    for code in _codes(function, world):
        for name in code.co_names:
            if isinstance(world.get(name), _SIZED):
                sizes[name] = len(world[name])
        for name in _assigned(code):
            if isinstance(world.get(name), _PLAIN):
                values[name] = world.get(name)
    return Before(function, sizes, values)


def _codes(function: FunctionType, world: dict[str, Any]) -> Iterator[CodeType]:
    """Walk through the code of ``function``, nested and named functions of the same notebook."""
    todo, seen = [function.__code__], set()
    while todo:
        code = todo.pop()
        if id(code) in seen:
            continue
        seen.add(id(code))
        yield code
        todo += [one for one in code.co_consts if isinstance(one, CodeType)]
        for name in code.co_names:
            one = world.get(name)
            if isinstance(one, FunctionType) and one.__globals__ is world:
                todo.append(one.__code__)


def _assigned(code: CodeType) -> Iterator[str]:
    """The names that ``code`` declares global and assigns to."""
    operations, arguments = code.co_code[::2], code.co_code[1::2]
    at = operations.find(_STORE_GLOBAL)
    while at >= 0:
        if at == 0 or operations[at - 1] != dis.EXTENDED_ARG:
            yield code.co_names[arguments[at]]
        at = operations.find(_STORE_GLOBAL, at + 1)


def _holds(returned: Any, value: Any) -> bool:
    """Whether a returned value is, or contains, the value of a variable."""
    if returned is value:
        return True
    if isinstance(returned, dict):
        returned = list(returned.values())
    return isinstance(returned, (list, tuple)) and any(one is value for one in returned)


class Reminder(Sink):
    """A sink that tells in the kernel, at the end, what was left behind."""

    def __init__(self) -> None:
        self._event: LeftBehind | None = None

    def handle(self, event: Any) -> None:
        """Keep what rank 0 says."""
        if isinstance(event, LeftBehind):
            self._event = event

    def close(self) -> None:
        """Warn, now that the run is over."""
        if self._event is None:
            return
        changes = ", ".join(f"{name}: {old} -> {new}" for name, old, new in self._event.changes)
        rails.warn(
            "kernel-global",
            f"changed in rank {self._event.rank} only, not in the notebook: {changes}",
            "a rank is a process of its own, and its copy of the variable ended with it",
            f"return it: run = notebook_launcher({self._event.function}, ...); run[0]",
            self._event.filename,
            self._event.line,
        )

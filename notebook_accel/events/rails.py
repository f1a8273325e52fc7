"""How a guard rail speaks: a Python warning with what, why and what to do, once for each line."""

from __future__ import annotations

import warnings

from notebook_accel.config import guards
from notebook_accel.errors import GuardRail
from notebook_accel.events.lines import place_of

_said: set[tuple[str, str, int]] = set()


def warn(name: str, what: str, why: str, fix: str, filename: str = "", line: int = 0) -> None:
    """Warn of a mistake that nothing else would show, about the person's ``line``."""
    if (name, filename, line) in _said or not guards.wanted(name):
        return
    _said.add((name, filename, line))
    where = f" ({place_of(filename, line)})" if filename else ""
    text = f"{what}{where}\n  why: {why}\n  do:  {fix}\n  ({guards.VARIABLE}=-{name} is quiet)"
    warnings.warn_explicit(GuardRail(text), None, filename or name, line)

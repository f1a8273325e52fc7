"""How a guard rail speaks: a Python warning with what, why and what to do, once for each line.

What is no mistake is a ``note``: a line on stdout, for a page paints stderr red.
"""

from __future__ import annotations

import sys
import warnings
from types import FrameType

from notebook_accel.config import guards
from notebook_accel.errors import GuardRail
from notebook_accel.events.lines import place_of

_said: set[tuple[str, str, int]] = set()


def note(text: str) -> None:
    """Say a line for the whole run, with no rank before it."""
    announce = getattr(sys.stdout, "announce", sys.stdout.write)
    announce(f"note: {text}\n")


def line_of(person: FrameType | None) -> tuple[str, int]:
    """Give the file and line of a frame, as ``warn`` takes them."""
    return ("", 0) if person is None else (person.f_code.co_filename, person.f_lineno)


def warn(name: str, what: str, why: str, fix: str, filename: str = "", line: int = 0) -> None:
    """Warn of a mistake that nothing else would show, about the person's ``line``."""
    if (name, filename, line) in _said or not guards.wanted(name):
        return
    _said.add((name, filename, line))
    where = f" ({place_of(filename, line)})" if filename else ""
    text = f"{what}{where}\n  why: {why}\n  do:  {fix}\n  ({guards.VARIABLE}=-{name} is quiet)"
    warnings.warn_explicit(GuardRail(text), None, filename or name, line)

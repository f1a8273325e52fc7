"""Refusing what a call of a training loop cannot work on, in three parts."""

from __future__ import annotations

from typing import Any

from notebook_accel.config.words import kind_of
from notebook_accel.errors import RuntimeMisuse


def needs(kind: type | tuple[type, ...], value: Any, call: str, why: str, fix: str) -> None:
    """Refuse a ``value`` that is no ``kind``, where ``call`` needs one.

    Errors: RuntimeMisuse.
    """
    if not isinstance(value, kind):
        raise RuntimeMisuse(f"{call} got {kind_of(value)}", why, fix)

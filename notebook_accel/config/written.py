"""Values as a person would write them."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any


def written(value: Any) -> str:
    """Write a dataclass as Python source: with the fields that are not their defaults."""
    given = []
    for one in fields(value):
        usual = one.default if one.default_factory is MISSING else one.default_factory()
        has = getattr(value, one.name)
        if has != usual and not (usual is None and has == {}):
            given.append(f"{one.name}={literal(has)}")
    return f"{type(value).__name__}({', '.join(given)})"


def literal(value: Any) -> str:
    """Write a value as Python source, words in double quotes."""
    return f'"{value}"' if isinstance(value, str) and '"' not in value else repr(value)

"""Strategies as a person would write them."""

from __future__ import annotations

from dataclasses import MISSING, fields

from notebook_accel.config.wishes import Strategy


def written(wish: Strategy) -> str:
    """Write a strategy as Python source: with the settings that are not its defaults."""
    given = []
    for one in fields(wish):
        usual = one.default if one.default_factory is MISSING else one.default_factory()
        value = getattr(wish, one.name)
        if value != usual and not (usual is None and value == {}):
            given.append(f"{one.name}={_source(value)}")
    return f"{type(wish).__name__}({', '.join(given)})"


def _source(value: object) -> str:
    if isinstance(value, Strategy):
        return written(value)
    return f'"{value}"' if isinstance(value, str) and '"' not in value else repr(value)

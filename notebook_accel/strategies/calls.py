"""How a model is called with what a loader gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def called_with(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Give the arguments: a mapping's by their names, a tuple's or list's in order, else one."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, (list, tuple)) else (inputs,)), {}

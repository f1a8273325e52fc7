"""What a face says when it is asked for a name that it does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from notebook_accel.config.absent import WHAT_BRINGS, not_here


def door(module: str) -> Callable[[str], Any]:
    """Give the ``__getattr__`` of a face: names that come later say what will bring them."""

    def __getattr__(name: str) -> Any:
        if name in WHAT_BRINGS:
            raise not_here(name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return __getattr__

"""Module hooks that belong to this process: in a pickle or a copy of the module they do nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def nothing(*args: Any) -> None:
    """What a hook does in a copy."""


class Hook:
    """A hook around ``call`` that leaves modules as picklable as they were."""

    def __init__(self, call: Callable[..., Any] = nothing) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        """Do what the hook is for."""
        return self._call(*args)

    def __reduce__(self) -> Any:
        return Hook, ()

    def __deepcopy__(self, memo: Any) -> Hook:
        return Hook()

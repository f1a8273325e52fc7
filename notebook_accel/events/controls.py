"""What a person may ask of a running run: the calls behind its buttons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Controls:
    """``stop`` a run after a step, or ``kill`` it; both may be called from any thread.

    ``is_blocking`` says that the cell that launched is busy until the end: no button can be
    heard there, and the interrupt button stops the run.
    """

    stop: Callable[[], None]
    kill: Callable[[], None]
    is_blocking: bool

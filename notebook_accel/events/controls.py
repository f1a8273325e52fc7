"""What can be asked of a running run: the calls behind its buttons, and where its ranks are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from notebook_accel.events.pulse import Beat


@dataclass(frozen=True)
class Controls:
    """``stop`` a run after a step, or ``kill`` it; both may be called from any thread.

    ``is_blocking`` says that the cell that launched is busy until the end: no button can be
    heard there, and the interrupt button stops the run. ``beats`` gives each rank's newest pulse.
    """

    stop: Callable[[], None]
    kill: Callable[[], None]
    is_blocking: bool
    beats: Callable[[], Sequence[Beat]] = tuple

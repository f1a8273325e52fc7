"""A loop that runs in a script, however that was started: how far it is, and a line at its end.

Rank 0 tells of itself, on stderr: stdout is the script's own.
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from typing import Any

from notebook_accel.events.history import History
from notebook_accel.events.model import Started
from notebook_accel.ui.live import LiveView
from notebook_accel.ui.panel import Panel
from notebook_accel.ui.pens import Pen, Stage, ending
from notebook_accel.ui.place import place
from notebook_accel.ui.screens import SharedScreen

_script = Stage()


def pen(device: str, rank: int, num_ranks: int) -> Pen | None:
    """Give a pen whose events are told on stderr; None on other ranks, and where nobody looks.

    Errors: ConfigError when NOTEBOOK_ACCEL_UI holds an unknown word.
    """
    if rank != 0 or not _is_seen() or place().surface == "off":
        return None
    name = Path(sys.argv[0]).name if sys.argv else ""
    parts = [name if name not in ("", "-", "-c") else "this script"]
    parts += [f"rank 0 of {num_ranks}"] if num_ranks > 1 else []
    return Pen(_script, lambda history, number: _ScriptRun(history, parts, device, number))


def _is_seen() -> bool:
    """Whether stderr goes where a person looks: no test or program keeps it, no prompt is there."""
    is_kept = sys.stderr is None or sys.stderr is not sys.__stderr__
    return not is_kept and not hasattr(sys, "ps1")


class _ScriptRun:
    """What is shown of a run in a script, once it has made a step."""

    def __init__(self, history: History, parts: list[str], device: str, number: int) -> None:
        again = [f"run {number}"] if number > 1 else []
        self._panel = Panel(history, ", ".join([*parts, *again, f"on {device}"]), 1)
        self._view = LiveView(self._panel, SharedScreen(sys.stderr, place().rewrites))
        self._view.handle(Started(0, os.getpid(), device, 1))

    def handle(self, event: Any) -> None:
        """Draw one event."""
        self._view.handle(event)
        if self._panel.rates.newest is not None:
            self._view.tick()

    def close(self, at: float, error: BaseException | None) -> None:
        """Leave the line that stays."""
        self._view.handle(ending(error))
        if self._panel.rates.newest is not None:
            self._view.close(at)


@atexit.register
def _ended() -> None:
    _script.end(getattr(sys, "last_value", None))

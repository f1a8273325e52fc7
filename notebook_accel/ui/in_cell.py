"""A loop that runs in the kernel itself, without a launch: the same view, in its cell.

The view begins with the first number of a cell and ends with the cell, or before the next training
of it. A loop that goes on in a later cell, with the same Accelerator, gets a view there that shows
the curves from the start. Each is on record as a run of its own.
"""

from __future__ import annotations

import atexit
import os
import sys
from types import FrameType
from typing import Any

from notebook_accel.events import shelf
from notebook_accel.events.history import History
from notebook_accel.events.lines import cell_number, ipython
from notebook_accel.events.model import Started
from notebook_accel.events.records import Recorder
from notebook_accel.events.story import About
from notebook_accel.ui.live import LiveView, screen
from notebook_accel.ui.panel import Panel
from notebook_accel.ui.pens import Pen, Stage, ending
from notebook_accel.ui.place import has_kernel, place
from notebook_accel.ui.screens import SharedScreen

_cell = Stage()
if not has_kernel():  # ``ipython train.py`` runs no cell
    atexit.register(_cell.end)


def pen(device: str, rank: int, num_ranks: int) -> Pen | None:
    """Give a pen whose events are drawn under the cell that runs; None if nobody wants to see.

    Errors: ConfigError when NOTEBOOK_ACCEL_UI holds an unknown word.
    """
    if place().surface == "off":
        return None
    return Pen(_cell, lambda history, number: _CellRun(history, device, number))


class _CellRun:
    """What is shown of a run in a cell, and its record."""

    def __init__(self, history: History, device: str, number: int) -> None:
        where = "in this kernel" if has_kernel() else "in IPython"
        again = f", run {number}" if number > 1 else ""
        about = About(shelf.new_id(), f"{_running_cell()}{again}", device, where, 1)
        self._recorder = Recorder(about, history, list, shelf.root())
        here = place()
        self._view = LiveView(
            Panel(history, f"{where}, on {device}{again and f'{again} of this cell'}", 1),
            screen(here) if has_kernel() else SharedScreen(sys.stderr, here.rewrites),
        )
        self.handle(Started(0, os.getpid(), device, 1))
        if number == 1:
            ipython().events.register("post_run_cell", _ended)

    def handle(self, event: Any) -> None:
        """Record and draw one event."""
        for sink in (self._recorder, self._view):
            sink.handle(event)
            sink.tick()

    def close(self, at: float, error: BaseException | None) -> None:
        """Leave the last picture, and the record with it."""
        self.handle(ending(error))
        self._view.close(at)
        self._recorder.close()
        if self._view.png:
            self._recorder.keep_picture(self._view.png)
        self._recorder.end(error, at=at)


def _ended(result: Any = None) -> None:
    ipython().events.unregister("post_run_cell", _ended)
    _cell.end(getattr(result, "error_in_exec", None))


def _running_cell() -> str:
    """Name the cell that runs: IPython counts it already or not yet, by version; frames know."""
    name = "a cell"
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        number = cell_number(frame.f_code.co_filename)
        name = name if number is None else f"In[{number}]"
        frame = frame.f_back
    return name

"""A loop that runs in the kernel itself, without a launch: the same view, in its cell.

The view begins with the first number of a cell and ends with the cell. A loop that goes on in a
later cell, with the same Accelerator, gets a view there that shows the curves from the start. Each
such cell is on record as a run of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from notebook_accel.events import shelf
from notebook_accel.events.emitter import Emitter
from notebook_accel.events.history import History
from notebook_accel.events.lines import cell_number, ipython
from notebook_accel.events.model import Failed, Returned, Started
from notebook_accel.events.records import Recorder
from notebook_accel.events.story import About
from notebook_accel.ui.live import LiveView, screen
from notebook_accel.ui.panel import Panel
from notebook_accel.ui.place import place


def pen(device: str) -> Emitter | None:
    """Give a pen whose events are drawn under the cell that runs; None if nobody wants to see.

    Errors: ConfigError when NOTEBOOK_ACCEL_UI holds an unknown word.
    """
    return None if place().surface == "off" else CellPen(device)


def _running_cell() -> str:
    """Name the cell that runs: IPython counts it already or not yet, by version; frames know."""
    name = "a cell"
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        number = cell_number(frame.f_code.co_filename)
        name = name if number is None else f"In[{number}]"
        frame = frame.f_back
    return name


class CellPen(Emitter):
    """A pen without a pipe: what it writes is drawn at once, here.

    ``at_end`` functions are called when a cell ends, before its last picture.
    """

    def __init__(self, device: str) -> None:
        super().__init__(0, -1)
        self.at_end: list[Callable[[], None]] = []
        self.history = History()
        self._device = device
        self._panel: Panel | None = None
        self._view: LiveView | None = None
        self._recorder: Recorder | None = None

    def _queue(self, event: Any) -> None:
        if os.getpid() != self._pid:  # a forked child has no cell
            return
        if self._view is None:
            self._open()
        assert self._view is not None and self._recorder is not None
        self.history.handle(event)
        for sink in (self._recorder, self._view):
            sink.handle(event)
            sink.tick()

    def _open(self) -> None:
        panel = Panel(self.history, f"in this kernel, on {self._device}", 1)
        self._panel = panel
        self._view = LiveView(panel, screen(place()))
        about = About(shelf.new_id(), _running_cell(), self._device, "in this kernel", 1)
        self._recorder = Recorder(about, self.history, list, shelf.root())
        for sink in (self._recorder, self._view):
            sink.handle(Started(0, os.getpid(), self._device, 1))
        ipython().events.register("post_run_cell", self._cell_ended)

    def _cell_ended(self, result: Any = None) -> None:
        ipython().events.unregister("post_run_cell", self._cell_ended)
        for function in self.at_end:
            function()
        self.flush()
        self._due = 0.0  # a short cell right after this one is shown too
        view, self._view = self._view, None
        recorder, self._recorder = self._recorder, None
        assert view is not None and recorder is not None
        error = getattr(result, "error_in_exec", None)
        ending = (
            Returned(0, 0) if error is None else Failed(0, type(error).__name__, str(error), [], "")
        )
        for sink in (recorder, view):
            sink.handle(ending)
        self.history.close()
        view.close()
        recorder.close()
        if view.png:
            recorder.keep_picture(view.png)
        recorder.end(error)

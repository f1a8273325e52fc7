"""The live view of a run: a progress line and a loss curve, with no code of the user's.

Only the kernel draws. The view looks at plain state (history, rates) at its own pace: a refresh
that took t of this thread waits at least 100 t before the next, so watching costs one percent of
a core. What stays in the saved notebook is a plain PNG with the same facts as text.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from notebook_accel.events.controls import Controls
from notebook_accel.events.history import History, Rates
from notebook_accel.events.model import (
    Display,
    Exited,
    Failed,
    Metrics,
    Output,
    Progress,
    Returned,
    Stuck,
)
from notebook_accel.events.sinks import Sink
from notebook_accel.ui import words
from notebook_accel.ui.place import Place, has_kernel, place
from notebook_accel.ui.screens import CellScreen, Screen, TextScreen, picture, publish


def live_view(
    history: History, title: str, num_ranks: int, controls: Controls | None = None
) -> Sink:
    """Make the view that suits this place: a picture in a cell, a line in a terminal, or none.

    ``controls`` are the calls behind its buttons; None: the run takes no orders.

    Errors: ConfigError when NOTEBOOK_ACCEL_UI holds an unknown word.
    """
    return LiveView(history, title, num_ranks)


def show(history: History, title: str) -> None:
    """Show the curves of a run again: a picture in a kernel, the facts as text elsewhere."""
    if not len(history):
        print(f"{title}: nothing was reported")
        return
    facts = words.facts(history)
    if place().surface == "png":
        from notebook_accel.ui import plot  # matplotlib: only where it is needed

        publish(picture(plot.png(history, title, 2.0), title, facts), None)
    else:
        print(f"{title}\n{facts}")


class LiveView:
    """Shows a run while it goes: a Sink.

    Nothing appears before the first Metrics or Progress event. A failure to draw is said once and
    ends the view, never the run.
    """

    def __init__(self, history: History, title: str, num_ranks: int) -> None:
        self._history = history
        self._rates = Rates(num_ranks)
        self._endings: dict[int, str] = {}
        self._began: float | None = None
        self._screen: Screen | None = _screen(place(), title)

    def handle(self, event: Any) -> None:
        """Take one event, after the history saw it."""
        if isinstance(event, Metrics | Progress):
            self._began = self._began or time.monotonic()
            self._rates.handle(event)
        elif isinstance(event, Output | Display):
            self._guarded(lambda screen: screen.make_way())
        elif isinstance(event, Returned):
            self._endings[event.rank] = "stopped" if event.stopped else ""
        elif isinstance(event, Stuck):
            self._endings.setdefault(-1, "the ranks waited for each other")
        elif isinstance(event, Failed) and not event.is_comm:
            self._endings[event.rank] = f"rank {event.rank} raised {event.type_name}"
        elif isinstance(event, Exited) and event.code != 0:
            left = "stopped" if event.by_us else f"rank {event.rank} {_how_it_left(event.code)}"
            self._endings.setdefault(event.rank, left)

    def tick(self) -> None:
        """Refresh what is due."""
        if self._began is not None:
            alive_s = time.monotonic() - self._began
            self._guarded(lambda screen: screen.refresh(self._history, self._rates, alive_s))

    def close(self) -> None:
        """Leave the final picture and its facts."""
        if self._began is not None:
            line = words.summary(self._rates, time.monotonic() - self._began, self._ending())
            self._guarded(lambda screen: screen.finish(self._history, line))
        self._screen = None

    def _ending(self) -> str:
        return next((ending for ending in self._endings.values() if ending), "")

    def _guarded(self, draw: Callable[[Screen], None]) -> None:
        if self._screen is None:
            return
        try:
            draw(self._screen)
        except Exception as error:
            self._screen = None
            print(
                f"notebook_accel: the live view stopped ({type(error).__name__}: {error}); "
                "the run is not affected and run.history has every point",
                file=sys.stderr,
            )


def _how_it_left(code: int) -> str:
    if code >= 0:
        return f"left with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"was killed by signal {-code}"


def _screen(here: Place, title: str) -> Screen | None:
    if here.surface == "png":
        return CellScreen(title)
    if here.surface == "text":
        return TextScreen(title, sys.stdout if has_kernel() else sys.stderr, here.rewrites)
    return None

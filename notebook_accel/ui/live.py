"""The live view of a run: where it is, its curves and its ranks, with no code of the user's.

Only the kernel draws. The view looks at plain state (``Panel``) at its own pace: a refresh that
took t of this thread waits at least 100 t before the next, so watching costs one percent of a core.
What stays in the saved notebook is a plain PNG with the same facts as text.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

from notebook_accel.events.controls import Controls
from notebook_accel.events.history import History
from notebook_accel.events.model import Display, Output
from notebook_accel.events.sinks import Sink
from notebook_accel.ui import words
from notebook_accel.ui.outputs import picture, publish
from notebook_accel.ui.panel import Panel
from notebook_accel.ui.place import Place, has_kernel, place
from notebook_accel.ui.screens import CellScreen, Screen, TextScreen


def live_view(
    history: History, title: str, num_ranks: int, controls: Controls | None = None
) -> Sink:
    """Make the view that suits this place: a panel in a cell, a line in a terminal, or none.

    ``controls`` are the calls behind its buttons; None: the run takes no orders.

    Errors: ConfigError when NOTEBOOK_ACCEL_UI holds an unknown word.
    """
    return LiveView(Panel(history, title, num_ranks, controls), screen(place()))


def show(history: History, title: str) -> None:
    """Show the curves of a run again: a picture in a kernel, the facts as text elsewhere."""
    if not len(history):
        print(f"{title}: nothing was reported")
        return
    facts = words.facts(history)
    if place().surface in ("canvas", "png"):
        from notebook_accel.ui import plot  # matplotlib: only where it is needed

        image = plot.png(history, title, 2.0)
        bundle, metadata = picture(image, title, facts, plot.WIDTH_PX)
        publish(bundle, None, metadata)
    else:
        print(f"{title}\n{facts}")


class LiveView(Sink):
    """Shows a panel while its run goes: a Sink.

    Nothing appears before there is something to show. A failure to draw is said once and ends the
    view, never the run.
    """

    def __init__(self, panel: Panel, screen: Screen | None) -> None:
        self._panel = panel
        self._screen = screen
        self.png = b""  # the picture that stays, once the run is over

    def handle(self, event: Any) -> None:
        """Take one event, after the history saw it."""
        if self._screen is None:
            return
        self._panel.handle(event)
        if isinstance(event, Output | Display):
            self._guarded(lambda screen: screen.make_way())

    def tick(self) -> None:
        """Refresh what is due."""
        if self._screen is None:
            return
        self._panel.tick()
        if self._panel.began is not None:
            self._guarded(lambda screen: screen.refresh(self._panel))

    def close(self, at: float | None = None) -> None:
        """Leave the final picture and its facts; the run ended ``at`` that time, or now."""
        if self._screen is None:
            return
        self._panel.close(at)
        if self._panel.began is not None:
            self._guarded(lambda screen: screen.finish(self._panel))
        self.png = getattr(self._screen, "png", b"")
        self._screen = None

    def _guarded(self, draw: Callable[[Screen], None]) -> None:
        if self._screen is None:
            return
        try:
            draw(self._screen)
        except Exception as error:
            self._screen = None
            with contextlib.suppress(OSError, ValueError):  # nobody reads stderr, or it is closed
                print(
                    f"notebook_accel: the live view stopped ({type(error).__name__}: {error}); "
                    "the run is not affected and run.history has every point",
                    file=sys.stderr,
                )


def screen(here: Place) -> Screen | None:
    """Make the screen that suits a place; None where nothing is to be shown."""
    if here.surface == "canvas":
        return CellScreen("yes")
    if here.surface == "png":
        return CellScreen("ask" if here.may_have_widgets else "no")
    if here.surface == "text":
        return TextScreen(sys.stdout if has_kernel() else sys.stderr, here.rewrites)
    return None

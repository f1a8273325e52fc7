"""Anything that looks at the events of a run: history, console, live plot.

The supervising loop hands every event to every sink, in its own thread, and calls ``tick`` each
time round (some ten times a second) so that a sink can draw at its own pace.
"""

from __future__ import annotations

from typing import Any


class Sink:
    """Looks at events; what a sink does not override does nothing.

    Each must return quickly, for the workers' pipes are read by the same loop.
    """

    def handle(self, event: Any) -> None:
        """Take one event."""

    def tick(self) -> None:
        """Do what is due by now (redraw, print a batch)."""

    def close(self) -> None:
        """The run is over, however it ended: leave the final picture."""

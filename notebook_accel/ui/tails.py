"""The last lines of each rank, for the folds of the panel."""

from __future__ import annotations

from collections import deque
from typing import Any

from notebook_accel.events.model import Output
from notebook_accel.events.sinks import Sink

MAX_LINES = 60
MAX_CHARS = 240


class Tails(Sink):
    """Keeps the newest lines of each rank, a repeated line once with its count: a Sink.

    ``version`` changes with every line, so that what has not changed is not sent again.
    """

    def __init__(self) -> None:
        self.version = 0
        self._lines: dict[int, deque[tuple[str, int]]] = {}

    def handle(self, event: Any) -> None:
        """Take one event."""
        if not isinstance(event, Output) or event.announced:
            return
        lines = self._lines.setdefault(event.rank, deque(maxlen=MAX_LINES))
        self.version += 1
        # A batch may be long: only its end can be seen.
        for line in event.text[-MAX_LINES * MAX_CHARS :].replace("\r\n", "\n").split("\n"):
            line = line.rstrip("\r").rpartition("\r")[2]  # what a progress bar wrote last
            if not line.strip():
                continue
            line = line if len(line) <= MAX_CHARS else line[: MAX_CHARS - 1] + "…"
            if lines and lines[-1][0] == line:
                line, count = lines.pop()
                lines.append((line, count + 1))
            else:
                lines.append((line, 1))

    def texts(self) -> dict[int, str]:
        """The newest lines of each rank that wrote any."""
        return {
            rank: "\n".join(line if n == 1 else f"{line}  (x{n})" for line, n in lines)
            for rank, lines in sorted(self._lines.items())
        }

"""Two ways to show a run while it goes: outputs of a notebook cell, a line in a terminal."""

from __future__ import annotations

import base64
import html
import importlib
import shutil
import time
from collections.abc import Callable
from typing import Any, Protocol, TextIO

from notebook_accel.events.history import History, Rates
from notebook_accel.ui import words


class Screen(Protocol):
    """One way to show a run."""

    def make_way(self) -> None:
        """Other output is about to appear."""
        ...

    def refresh(self, history: History, rates: Rates, alive_s: float) -> None:
        """Show where the run is, if a refresh is due."""
        ...

    def finish(self, history: History, line: str) -> None:
        """Show the run as it will stay."""
        ...


class Pace:
    """When the next refresh is due: at most every ``interval_s``, and 100 times its own cost."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._due = 0.0

    def run(self, refresh: Callable[[], None]) -> None:
        """Refresh if it is due. The cost is processor time: waiting for a core costs nobody."""
        if time.monotonic() < self._due:
            return
        start = time.thread_time()
        refresh()
        cost_s = time.thread_time() - start
        self._due = time.monotonic() + max(self._interval_s, 100 * cost_s)

    def hold(self, seconds: float) -> None:
        """Let no refresh happen for a while."""
        self._due = max(self._due, time.monotonic() + seconds)


class CellScreen:
    """A progress line and a picture in a notebook cell, each one output that is updated."""

    LINE_INTERVAL_S = 0.25
    PICTURE_INTERVAL_S = 0.25
    QUIET_START_S = 0.3  # importing matplotlib takes longer than many a short run

    def __init__(self, title: str) -> None:
        self._title = title
        self._line: Any = None
        self._image: Any = None
        self._line_pace = Pace(self.LINE_INTERVAL_S)
        self._image_pace = Pace(self.PICTURE_INTERVAL_S)
        self._card: Any = None

    def make_way(self) -> None:
        """A cell has room for everything."""

    def refresh(self, history: History, rates: Rates, alive_s: float) -> None:
        """Update the line, and the picture once the run has lived for a moment."""
        self._line_pace.run(lambda: self._write(words.status(history, rates), _fraction(rates)))
        if alive_s > self.QUIET_START_S and _has_curve(history):
            if self._card is None:  # the first drawing costs ten times the later ones:
                self._card = _plot().Card(self._title)
                self._card.png(history)  # paid here, it does not slow the pace of the pictures
            self._image_pace.run(lambda: self._draw(self._card.png(history), ""))

    def finish(self, history: History, line: str) -> None:
        """Leave a sharp picture and the facts as text."""
        facts = words.facts(history)
        self._write(f"{line}\n{facts}".rstrip(), None)
        if _has_curve(history):
            card = self._card or _plot().Card(self._title)
            self._draw(card.png(history, 2.0), facts)

    def _write(self, line: str, fraction: float | None) -> None:
        self._line = publish({"text/html": _html(line, fraction), "text/plain": line}, self._line)
        if self._image is None:  # claim the place below the line before other output takes it
            self._image = publish({"text/plain": ""}, None)

    def _draw(self, image: bytes, facts: str) -> None:
        self._image = publish(picture(image, self._title, facts), self._image)


class TextScreen:
    """One line in a terminal that is rewritten; where that is impossible, a line now and then."""

    REWRITE_INTERVAL_S = 0.1
    PLAIN_INTERVAL_S = 5.0
    AFTER_OUTPUT_S = 0.2
    _CLEAR = "\r\x1b[K"

    def __init__(self, title: str, stream: TextIO, rewrites: bool) -> None:
        self._title = title
        self._stream = stream
        self._rewrites = rewrites
        self._shown = False
        self._pace = Pace(self.REWRITE_INTERVAL_S if rewrites else self.PLAIN_INTERVAL_S)

    def make_way(self) -> None:
        """Clear the line, so that what is printed next starts on an empty one."""
        if self._shown:
            self._write(self._CLEAR)
            self._shown = False
        if self._rewrites:  # what was printed is written in batches: it may take a moment
            self._pace.hold(self.AFTER_OUTPUT_S)

    def refresh(self, history: History, rates: Rates, alive_s: float) -> None:
        """Rewrite the line, or add one when the last is old."""
        line = words.status(history, rates)
        if self._rewrites:  # short: a terminal is narrow, and the launch line is just above
            self._pace.run(lambda: self._rewrite(line))
        elif alive_s >= self.PLAIN_INTERVAL_S:
            self._pace.run(lambda: self._write(f"{self._title}: {line}\n"))

    def finish(self, history: History, line: str) -> None:
        """End with one line that stays."""
        self.make_way()
        loss = ""
        if "loss" in history:
            first, last = history["loss"][0], history.last("loss")
            loss = f"{words.SEPARATOR}loss {words.number(first)} -> {words.number(last)}"
        self._write(f"{self._title}: {line}{loss}\n")

    def _rewrite(self, line: str) -> None:
        self._write(f"{self._CLEAR}{_fitted(line)}")
        self._shown = True

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _has_curve(history: History) -> bool:
    """One point is no curve: a run of one step is not worth the time of a picture."""
    return any(history.series(name).settled > 1 for name in history)


def _plot() -> Any:
    """What draws: imported when there is something to draw, for matplotlib takes its time."""
    return importlib.import_module("notebook_accel.ui.plot")


def _fraction(rates: Rates) -> float | None:
    newest = rates.newest
    if newest is None or not newest.num_batches:
        return None
    return min(1.0, newest.batch / newest.num_batches)


def _fitted(line: str) -> str:
    width = shutil.get_terminal_size().columns
    return line if len(line) < width else line[: width - 2] + "…"


def _html(line: str, fraction: float | None) -> str:
    bar = ""
    if fraction is not None:
        shape = "height:6px;border-radius:3px"
        bar = (
            f'<span style="display:inline-block;width:140px;{shape};margin-right:10px;'
            'vertical-align:middle;background:rgba(127,127,127,.3)">'
            f'<span style="display:block;width:{100 * fraction:.0f}%;{shape};'
            'background:#2f86c9"></span></span>'
        )
    text = html.escape(line).replace("\n", "<br>").replace("-&gt;", "→")
    style = "padding:2px 8px;font-size:13px;font-variant-numeric:tabular-nums"
    return f'<div style="{style}">{bar}{text}</div>'


def picture(image: bytes, title: str, facts: str) -> dict[str, Any]:
    """The bundle that stays in a saved notebook: the image, and what it says as text."""
    return {"image/png": image, "text/plain": f"{title}\n{facts}"}


def publish(bundle: dict[str, Any], handle: Any) -> Any:
    """Show a bundle in the cell, in place of what ``handle`` showed before."""
    show: Any = importlib.import_module("IPython.display").display
    metadata = {}
    if "image/png" in bundle:
        image = base64.b64encode(bundle["image/png"]).decode()
        bundle, metadata = (
            {**bundle, "image/png": image},
            {"image/png": {"width": _plot().WIDTH_PX}},
        )
    if handle is None:
        return show(bundle, raw=True, metadata=metadata, display_id=True)
    handle.update(bundle, raw=True, metadata=metadata)
    return handle

"""Ways to show a run while it goes: outputs of a notebook cell, a line in a terminal."""

from __future__ import annotations

import importlib
import math
import shutil
import sys
from collections.abc import Callable
from typing import Any, Protocol, TextIO

from notebook_accel.events.history import History
from notebook_accel.ui import markup, words
from notebook_accel.ui.outputs import picture, publish
from notebook_accel.ui.pace import Pace
from notebook_accel.ui.panel import Panel


class Screen(Protocol):
    """One way to show a run."""

    def make_way(self) -> None:
        """Other output is about to appear."""
        ...

    def refresh(self, panel: Panel) -> None:
        """Show where the run is, if a refresh is due."""
        ...

    def finish(self, panel: Panel) -> None:
        """Show the run as it will stay."""
        ...


class CellScreen:
    """Two outputs of a cell, both updated in place: the words above, the picture below.

    Where the page draws widgets, the first one is the panel while the run goes on; what stays is
    always words and a plain picture. ``canvas`` says whether that is known ("yes"), to be asked
    for ("ask") or not wanted ("no").
    """

    CANVAS_INTERVAL_S = 0.1
    LINE_INTERVAL_S = 0.25
    PICTURE_INTERVAL_S = 0.25
    QUIET_START_S = 0.3  # importing what draws takes longer than many a short run

    def __init__(self, canvas: str = "no") -> None:
        self._wish = canvas
        self._canvas: Any = None
        self._is_canvas_shown = False
        self._words: Any = None
        self._image: Any = None
        self._canvas_pace = Pace(self.CANVAS_INTERVAL_S)
        self._line_pace = Pace(self.LINE_INTERVAL_S)
        self._image_pace = Pace(self.PICTURE_INTERVAL_S)
        self._card: Any = None
        self.png = b""  # what was drawn last, for the run's record

    def make_way(self) -> None:
        """A cell has room for everything."""

    def refresh(self, panel: Panel) -> None:
        """Update the words, and the picture once the run has lived for a moment."""
        is_early = panel.alive_s <= self.QUIET_START_S
        if not is_early and self._canvas is None and self._wish != "no":
            self._make_canvas(panel)
        if self._is_canvas_shown:
            self._canvas_pace.run(lambda: self._canvas.show(panel))
            return
        if self._canvas is not None and (self._wish == "yes" or self._canvas.is_there):
            self._switch(panel)
            return
        self._line_pace.run(lambda: self._write(markup.running(panel), markup.as_text(panel)))
        if not is_early and _has_curve(panel.history):
            if self._card is None:  # the first drawing costs ten times the later ones:
                self._card = _plot().Card(panel.title)
                self._card.png(panel.curves)  # paid here, it does not slow the pictures' pace
            self._image_pace.run(lambda: self._draw(panel, self._card.png(panel.curves), ""))

    def finish(self, panel: Panel) -> None:
        """Leave the words and a sharp picture that says the same."""
        facts = words.facts(panel.history)
        if self._is_canvas_shown:  # for a page that was reloaded, and has lost the way to here
            self._canvas.show(panel)
        self._write(markup.ended(panel, facts), markup.as_text(panel, facts))
        if _has_curve(panel.history):
            card = self._card or _plot().Card(panel.title)
            self._draw(panel, card.png(panel.curves, 2.0), facts)

    def _make_canvas(self, panel: Panel) -> None:
        canvas = importlib.import_module("notebook_accel.ui.canvas")
        try:
            self._canvas = canvas.Canvas(panel.ask) if canvas.is_installed() else None
        except Exception:  # a library of it does not fit the others here: there are pictures
            self._canvas = None
        if self._canvas is None:
            self._wish = "no"

    def _switch(self, panel: Panel) -> None:
        self._canvas.show(panel)
        self._is_canvas_shown = True
        self._words = publish(self._canvas.bundle(panel.line), self._words)
        self._image = publish({"text/plain": ""}, self._image)

    def _write(self, html: str, text: str) -> None:
        self._words = publish({"text/html": html, "text/plain": text}, self._words)
        if self._image is None:  # claim the place below the words before other output takes it
            self._image = publish({"text/plain": ""}, None)

    def _draw(self, panel: Panel, image: bytes, facts: str) -> None:
        self.png = image
        bundle, metadata = picture(image, panel.title, facts, _plot().WIDTH_PX)
        self._image = publish(bundle, self._image, metadata)


class TextScreen:
    """One line in a terminal that is rewritten; where that is impossible, a line now and then."""

    REWRITE_INTERVAL_S = 0.1
    PLAIN_INTERVAL_S = 5.0
    AFTER_OUTPUT_S = 0.2
    _CLEAR = "\r\x1b[K"

    def __init__(self, stream: TextIO, rewrites: bool) -> None:
        self._stream = stream
        self._rewrites = rewrites
        self._shown = False
        self._num_alarms = 0
        self._pace = Pace(self.REWRITE_INTERVAL_S if rewrites else self.PLAIN_INTERVAL_S)

    def make_way(self) -> None:
        """Clear the line, so that what is printed next starts on an empty one."""
        if self._shown:
            self._write(self._CLEAR)
            self._shown = False
        if self._rewrites:  # what was printed is written in batches: it may take a moment
            self._pace.hold(self.AFTER_OUTPUT_S)

    def refresh(self, panel: Panel) -> None:
        """Rewrite the line, or add one when the last is old; tell alarms at once."""
        for text in panel.alarms.texts[self._num_alarms :]:
            self._num_alarms += 1
            self.make_way()
            self._write(f"{panel.title}: ▲ {text}\n")
        line = words.SEPARATOR.join([panel.line, *panel.marks(), *panel.tasks()])
        if self._rewrites:  # short: a terminal is narrow, and the launch line is just above
            self._pace.run(lambda: self._rewrite(line))
        elif panel.alive_s >= self.PLAIN_INTERVAL_S:
            self._pace.run(lambda: self._write(f"{panel.title}: {line}\n"))

    def finish(self, panel: Panel) -> None:
        """End with one line that stays."""
        self.make_way()
        loss = ""
        if "loss" in panel.history:
            first, last = panel.history["loss"][0], panel.history.last("loss")
            loss = f"{words.SEPARATOR}loss {words.number(first)} -> {words.number(last)}"
        alarms = "".join(f"{words.SEPARATOR}▲ {text}" for text in panel.alarms.texts)
        self._write(f"{panel.title}: {panel.line}{loss}{alarms}\n")

    def _rewrite(self, line: str) -> None:
        self._write(f"{self._CLEAR}{_fitted(line)}")
        self._shown = True

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class SharedScreen(TextScreen):
    """The line of a terminal to which this very process writes as well: it makes way for that.

    In a log, only alarms and the end are told: a line every few seconds would fill it.
    """

    PLAIN_INTERVAL_S = math.inf

    def __init__(self, stream: TextIO, rewrites: bool) -> None:
        super().__init__(stream, rewrites)
        self._put: Callable[[str], Any] = stream.write
        self._is_within_line = False  # of somebody else's: an open bar of tqdm's, say
        self._leave: list[Callable[[], None]] = []
        if rewrites:
            for one in {id(one): one for one in (sys.stdout, sys.stderr, stream)}.values():
                self._watch(one)

    def refresh(self, panel: Panel) -> None:
        """Rewrite the line, where that would not overwrite what others have begun to write."""
        is_taken = self._is_within_line or self._has_bar()
        if not is_taken or len(panel.alarms.texts) > self._num_alarms:
            super().refresh(panel)

    def finish(self, panel: Panel) -> None:
        """End with one line that stays, and let go of the streams."""
        super().finish(panel)
        for leave in self._leave:
            leave()

    def _has_bar(self) -> bool:
        """Whether tqdm has an open bar: one made before this screen is written past its ears."""
        tqdm = sys.modules.get("tqdm.std") if self._rewrites else None
        return tqdm is not None and len(tqdm.tqdm._instances) > 0

    def _watch(self, stream: Any) -> None:
        """Hear what is written to ``stream``, by whoever holds it: a logger, or tqdm."""
        if stream is None or not stream.isatty():
            return
        write = stream.write

        def heard(text: str) -> Any:
            self.make_way()
            if text:
                self._is_within_line = text[-1] not in "\r\n"
            return write(text)

        def leave() -> None:
            if stream.write is heard:  # else somebody watches in their turn, and holds on to it
                del stream.write

        try:
            stream.write = heard
        except AttributeError:  # a stream that cannot be listened to
            return
        self._leave.append(leave)

    def _write(self, text: str) -> None:
        if self._is_within_line or self._has_bar():
            text = f"\n{text}"
            self._is_within_line = False
        self._put(text)
        self._stream.flush()


def _has_curve(history: History) -> bool:
    """One point is no curve: a run of one step is not worth the time of a picture."""
    return any(history.series(name).settled > 1 for name in history)


def _plot() -> Any:
    """What draws: imported when there is something to draw, for matplotlib takes its time."""
    return importlib.import_module("notebook_accel.ui.plot")


def _fitted(line: str) -> str:
    width = shutil.get_terminal_size().columns
    return line if len(line) < width else line[: width - 2] + "…"

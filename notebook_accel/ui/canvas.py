"""The panel as a widget: a small canvas in the page, whose whole content is two values.

``state`` holds the words, ``points`` all curves as float32, both complete each time: a page that is
reloaded in the middle, or opened twice, shows the same. anywidget is asked for only here, and what
can do without it does.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from notebook_accel.ui import words
from notebook_accel.ui.curves import Curve
from notebook_accel.ui.outputs import view_bundle
from notebook_accel.ui.pace import Pace
from notebook_accel.ui.panel import Panel
from notebook_accel.ui.series import groups, is_rate, pictures, split

MAX_SERIES = 16
MAX_COLUMNS = 1200  # of all series together
MAX_RUNS = 40
_FRONT = Path(__file__).parent / "front"
# A page that was reloaded asks for the models of its outputs: the newest ones can still answer.
_kept: deque[Canvas] = deque(maxlen=8)


def is_installed() -> bool:
    """Whether this environment has what a canvas needs."""
    return importlib.util.find_spec("anywidget") is not None


class Canvas:
    """One panel in the page. ``hear`` is called with what a button of it asks for, in any thread.

    ``is_there`` turns true when the page says that it has made its side of it.
    """

    def __init__(self, hear: Callable[[str], None]) -> None:
        self.is_there = False
        self._hear = hear
        self._tails_pace = Pace(1.0)
        self._tails_version = 0
        self._widget = _widget_class()()
        self._widget.on_msg(self._told)
        if len(_kept) == _kept.maxlen:
            _kept[0].close()
        _kept.append(self)

    def show(self, panel: Panel) -> None:
        """Send the panel as it is now."""
        state, points = snapshot(panel)
        with self._widget.hold_sync():
            self._widget.points = points
            self._widget.state = state
            if panel.over:
                self._send_tails(panel)
            else:
                self._tails_pace.run(lambda: self._send_tails(panel))

    def bundle(self, line: str) -> dict[str, Any]:
        """What to display for it to appear."""
        return view_bundle(self._widget, line)

    def close(self) -> None:
        """Take it from the page."""
        self._widget.close()

    def _send_tails(self, panel: Panel) -> None:
        if panel.tails.version != self._tails_version:
            self._tails_version = panel.tails.version
            self._widget.tails = {str(rank): text for rank, text in panel.tails.texts().items()}

    def _told(self, widget: Any, content: Any, buffers: Any) -> None:
        what = content.get("ask") if isinstance(content, dict) else None
        if what == "hello":
            self.is_there = True
        elif isinstance(what, str):
            self._hear(what)


def snapshot(panel: Panel) -> tuple[dict[str, Any], bytes]:
    """The panel as the page wants it: words, and the numbers of all curves in one piece."""
    names = [name for group in pictures(panel.history) for name in group.names]
    curves = _drawn([panel.curves[name] for name in names])
    marks = panel.timeline.with_newest()
    controls = panel.controls
    state = {
        "title": panel.title,
        "over": panel.over,
        "where": panel.line,
        "fraction": None if panel.over else panel.fraction,
        "epoch": panel.epoch,
        "meters": [] if panel.over else _meters(panel),
        "alarms": list(panel.alarms.texts),
        "tasks": panel.tasks(),
        "hint": panel.hint,
        "buttons": controls is not None and not controls.is_blocking and not panel.over,
        "stopping": panel.stop_asked,
        "rows": [vars(row) for row in panel.ranks.rows()],
        "series": [_described(panel, curve) for curve in curves],
        "marks": len(marks),
        "facts": words.facts(panel.history) if panel.over else "",
    }
    parts = [part for curve in curves for part in _numbers(curve)]
    parts += list(np.array(marks, dtype=np.float64).reshape(-1, 3).T)
    with np.errstate(over="ignore"):  # what is too large for the page leaves a gap
        return state, np.concatenate(parts).astype(np.float32).tobytes()


def _drawn(curves: list[Curve]) -> list[Curve]:
    shown = curves[:MAX_SERIES]
    return [curve.narrowed(MAX_COLUMNS // max(1, len(shown))) for curve in shown]


def _described(panel: Panel, curve: Curve) -> dict[str, Any]:
    return {
        "name": curve.name,
        "metric": split(curve.name)[0],
        "size": len(curve.steps),
        "exact": curve.is_exact,
        "dots": curve.has_dots,
        "said": words.latest(panel.history, curve.name),
        "last": curve.last if np.isfinite(curve.last) else None,
        "broken": _runs(curve),
        "isSetting": is_rate(curve.name),
    }


def _runs(curve: Curve) -> list[tuple[float, float]]:
    """Where values were not finite, as the first and last step of each stretch; the first few."""
    steps = curve.broken
    if not len(steps):
        return []
    spacing = (curve.steps[-1] - curve.steps[0]) / max(1, len(curve.steps) - 1)
    breaks = np.flatnonzero(np.diff(steps) > 2.5 * spacing) + 1
    return [(float(run[0]), float(run[-1])) for run in np.split(steps, breaks)[:MAX_RUNS]]


def _numbers(curve: Curve) -> list[Any]:
    band = [] if curve.is_exact else [curve.lows, curve.highs]
    return [curve.steps, curve.means, *band]


def _meters(panel: Panel) -> list[tuple[str, str, str]]:
    """The small numbers under the bar: where, how fast, and the newest value of every series."""
    names = [name for group in groups(panel.history) for name in group.names]
    values = [(name, words.latest(panel.history, name), "") for name in names[:MAX_SERIES]]
    return [*words.where(panel.rates), *values, *words.pace(panel.rates)]


@lru_cache(maxsize=1)
def _widget_class() -> Any:
    """The widget's class, made when the first one is: its libraries take their time."""
    base = importlib.import_module("anywidget").AnyWidget
    traits = importlib.import_module("traitlets")
    text = {name: (_FRONT / name).read_text("utf-8") for name in ("chart.js", "panel.js")}
    members = {
        "_esm": text["chart.js"] + text["panel.js"],
        "_css": (_FRONT / "panel.css").read_text("utf-8"),
        "state": traits.Dict().tag(sync=True),
        "points": traits.Bytes().tag(sync=True),
        "tails": traits.Dict().tag(sync=True),
    }
    return type("LivePanel", (base,), members)

"""A history as a picture; ``words.facts`` says the same as text.

The picture is a white card, so that it can be read in light and dark pages and in a saved file.
Series differ by line style and carry their name and newest value at the end of the line: nothing
depends on color alone. No pyplot: its state is global, and callbacks may come from other threads.
"""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from numpy.typing import NDArray

from notebook_accel.events.history import History
from notebook_accel.ui import words

Floats = NDArray[np.float64]

WIDTH_PX, HEIGHT_PX = 720, 280
_DPI = 100
_COLUMNS = 240  # per panel: more columns than a line of this width can show apart
_MAX_LINES = 4  # per panel
_LOG_FROM = 1e5  # a straight scale shows a loss as people know it; only wild ranges leave it
_INK, _FAINT, _GRID, _ALARM = "#24292f", "#57606a", "#e4e7eb", "#b3261e"
_PENS = (
    ("#1763a6", "solid", "o"),
    ("#b04a00", "dashed", "s"),
    ("#2f7031", "dashdot", "^"),
    ("#6f42a8", "dotted", "D"),
)
_LOCK = threading.Lock()  # Agg's font cache is shared; two launches may draw at once


@dataclass(frozen=True)
class Curve:
    """One series ready to draw: per pixel column its middle step, mean, lowest and highest value.

    ``broken`` are the steps whose value was not finite, at most one per column.
    """

    name: str
    steps: Floats
    means: Floats
    lows: Floats
    highs: Floats
    broken: Floats
    last: float


def curve(history: History, name: str, num_columns: int = _COLUMNS) -> Curve:
    """Reduce a series to at most ``num_columns`` columns that keep every spike."""
    series = history.series(name)
    size = series.settled
    steps = np.array(series.steps[:size], dtype=np.float64)
    values = np.array(series.totals[:size]) / np.array(series.counts[:size])
    starts = np.unique(np.linspace(0, size, num_columns, endpoint=False, dtype=np.int64))
    finite = np.isfinite(values)
    num_finite = np.add.reduceat(finite, starts, dtype=np.int64)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.add.reduceat(np.where(finite, values, 0.0), starts) / num_finite
    empty = num_finite == 0
    lows = np.minimum.reduceat(np.where(finite, values, np.inf), starts)
    highs = np.maximum.reduceat(np.where(finite, values, -np.inf), starts)
    lows[empty] = highs[empty] = np.nan
    ends = np.append(starts[1:], size)
    middles = (steps[starts] + steps[ends - 1]) / 2
    broken = middles[num_finite < ends - starts]
    return Curve(name, middles, means, lows, highs, broken, float(values[-1]))


class Card:
    """The picture of one run, drawn again and again: its axes are made once.

    Losses share one panel; everything else that was logged shares a second one.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._figure: Any = None
        self._panels: list[Any] = []

    def png(self, history: History, scale: float = 1.0) -> bytes:
        """Draw the history as PNG bytes of ``scale`` x 720 x 280 pixels."""
        losses = [name for name in history if words.is_loss(name)]
        others = [name for name in history if not words.is_loss(name)]
        panels = [names for names in (losses, others) if names]
        last_step = max((history.series(name).steps[-1] for name in history), default=1)
        with _LOCK:
            if self._figure is None or len(panels) != len(self._panels):
                self._lay_out(len(panels))
            for axes, names in zip(self._panels, panels, strict=True):
                _draw_panel(axes, [curve(history, name) for name in names], last_step)
            self._figure.set_dpi(_DPI * scale)
            buffer = io.BytesIO()
            self._figure.canvas.print_png(buffer, pil_kwargs={"compress_level": 1})
        return buffer.getvalue()

    def _lay_out(self, num_panels: int) -> None:
        self._figure = Figure(figsize=(WIDTH_PX / _DPI, HEIGHT_PX / _DPI), facecolor="white")
        FigureCanvasAgg(self._figure)
        self._figure.text(16 / WIDTH_PX, 0.915, self._title, color=_INK, fontsize=10, weight="bold")
        width = 1 / max(1, num_panels)
        self._panels = [
            self._figure.add_axes(
                (number * width + 48 / WIDTH_PX, 0.16, width - 124 / WIDTH_PX, 0.67)
            )
            for number in range(num_panels)
        ]
        for axes in self._panels:
            _style(axes)


def png(history: History, title: str, scale: float = 1.0) -> bytes:
    """Draw one picture of a history that will not change."""
    return Card(title).png(history, scale)


def _draw_panel(axes: Any, curves: list[Curve], last_step: int) -> None:
    for artist in (*axes.lines, *axes.collections, *axes.texts):
        artist.remove()
    shown = curves[:_MAX_LINES]
    for item, pen in zip(shown, _PENS, strict=False):
        _draw_line(axes, item, *pen)
    _set_limits(axes, shown, last_step)
    _label_ends(axes, shown, len(curves) - len(shown))


def _draw_line(axes: Any, item: Curve, color: str, style: str, marker: str) -> None:
    axes.fill_between(item.steps, item.lows, item.highs, color=color, alpha=0.18, linewidth=0)
    few = len(item.steps) <= 24
    axes.plot(
        item.steps,
        item.means,
        color=color,
        linestyle=style,
        linewidth=1.6,
        marker=marker if few else None,
        markersize=3.5,
        clip_on=False,
    )
    if len(item.broken):
        axes.plot(
            item.broken,
            np.full(len(item.broken), 0.97),
            "x",
            color=_ALARM,
            markersize=6,
            transform=axes.get_xaxis_transform(),
        )


def _set_limits(axes: Any, curves: list[Curve], last_step: int) -> None:
    axes.set_xlim(0, max(1, last_step))
    finite = [v[np.isfinite(v)] for item in curves for v in (item.lows, item.highs)]
    values = np.concatenate(finite)
    axes.yaxis.set_visible(bool(len(values)))
    if not len(values):
        axes.set_yscale("linear")
        axes.set_ylim(0, 1)
        return
    low, high = float(values.min()), float(values.max())
    scale = "log" if 0 < _LOG_FROM * low < high else "linear"
    if axes.get_yscale() != scale:
        axes.set_yscale(scale)
        axes.yaxis.set_minor_locator(NullLocator())
    if scale == "log":
        axes.set_ylim(low / 1.5, high * 1.5)
    elif 0 <= low < 0.4 * high:  # a loss is read against zero
        axes.set_ylim(0, high * 1.06)
    else:
        margin = 0.08 * (high - low) or 0.1 * abs(high) or 0.1
        axes.set_ylim(low - margin, high + margin)


def _style(axes: Any) -> None:
    axes.grid(True, axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_FAINT)
    axes.locator_params(axis="x", integer=True, nbins=6)
    axes.locator_params(axis="y", nbins=5)
    axes.tick_params(colors=_FAINT, labelsize=8, length=0, axis="y")
    axes.tick_params(colors=_FAINT, labelsize=8, length=3, axis="x")
    axes.set_xlabel("optimizer step", fontsize=8, color=_FAINT, labelpad=2)


def _label_ends(axes: Any, curves: list[Curve], num_hidden: int) -> None:
    """Write each line's name and newest value at its end, moved apart where they would touch."""
    to_axes = axes.transData + axes.transAxes.inverted()
    anchors = []
    for item, (color, _, _) in zip(curves, _PENS, strict=False):
        height = 0.95  # a value that is not finite stands beside its mark
        if np.isfinite(item.last):
            height = to_axes.transform((item.steps[-1], item.means[-1]))[1]
        anchors.append((float(height), item, color))
    floor = 0.0
    for height, item, color in sorted(anchors, key=lambda anchor: anchor[0]):
        floor = max(height, floor)
        name = item.name if len(item.name) <= 12 else item.name[:11] + "…"
        text = f"{name}\n{words.precise(item.last)}"
        alarm = color if np.isfinite(item.last) else _ALARM
        axes.annotate(
            text,
            (1.02, floor),
            xycoords="axes fraction",
            color=alarm,
            fontsize=8.5,
            va="center",
            annotation_clip=False,
        )
        floor += 0.18
    if num_hidden:
        axes.annotate(
            f"+{num_hidden} more", (1.02, 1.0), xycoords="axes fraction", color=_FAINT, fontsize=8
        )

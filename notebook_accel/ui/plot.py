"""A history as a picture; ``words.facts`` says the same as text.

The picture is a white card, so that it can be read in light and dark pages and in a saved file.
Series differ by line style and carry their name and newest value at the end of the line: nothing
depends on color alone. No pyplot: its state is global, and callbacks may come from other threads.
"""

from __future__ import annotations

import io
import threading
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from notebook_accel.events.history import History
from notebook_accel.ui import ink, words
from notebook_accel.ui.curves import Curve, Curves, Extent
from notebook_accel.ui.series import Group, pictures

WIDTH_PX, HEIGHT_PX, ROW_PX = 720, 280, 240
MAX_PANELS = 4
_DPI = 100
_COLUMNS = 300  # of a panel as wide as the picture: more than a line can show apart
_MAX_LINES = 4  # per panel
_ALARM = "#b3261e"
_PENS = tuple(zip(ink.COLORS, ink.STYLES, "os^D", strict=True))
_LOCK = threading.Lock()  # Agg's font cache is shared; two launches may draw at once


class Card:
    """The picture of one run, drawn again and again: its axes are made once.

    Curves of one number share a panel (train and validation); up to four panels, losses first.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._figure: Any = None
        self._panels: list[Any] = []

    def png(self, curves: Curves, scale: float = 1.0) -> bytes:
        """Draw the curves as PNG bytes, ``scale`` x 720 pixels wide."""
        found = pictures(curves.history)
        shown, hidden = found[:MAX_PANELS], found[MAX_PANELS:]
        with _LOCK:
            if self._figure is None or len(shown) != len(self._panels):
                self._lay_out(len(shown))
            for axes, group in zip(self._panels, shown, strict=True):
                columns = (
                    _COLUMNS if axes.bbox.width > axes.figure.bbox.width / 2 else _COLUMNS // 2
                )
                members = [curves[name].narrowed(columns) for name in group.names]
                _draw_panel(axes, members, curves.last_step, group.metric)
            self._title_text.update(ink.written(self._title + _left_out(hidden)))
            self._figure.set_dpi(_DPI * scale)
            buffer = io.BytesIO()
            self._figure.canvas.print_png(buffer, pil_kwargs={"compress_level": 1})
        return buffer.getvalue()

    def _lay_out(self, num_panels: int) -> None:
        cells = _cells(num_panels)
        height_px = HEIGHT_PX + max(row for row, *_ in cells) * ROW_PX if cells else HEIGHT_PX
        self._figure = Figure(figsize=(WIDTH_PX / _DPI, height_px / _DPI), facecolor="white")
        FigureCanvasAgg(self._figure)
        self._title_text = self._figure.text(
            16 / WIDTH_PX, 1 - 24 / height_px, "", color=ink.INK, fontsize=10, weight="bold"
        )
        self._panels = []
        for row, left, width in cells:
            bottom_px = height_px - HEIGHT_PX + 44 - row * ROW_PX
            place = (left + 48 / WIDTH_PX, bottom_px / height_px)
            size = (width - 124 / WIDTH_PX, (ROW_PX - 66) / height_px)
            axes = self._figure.add_axes((*place, *size))
            _style(axes, is_wide=width == 1, is_last=row == cells[-1][0])
            self._panels.append(axes)


def _cells(num_panels: int) -> list[tuple[int, float, float]]:
    """Where panels lie: row, left edge and width. An odd number gives the first all the width."""
    first = [(0, 0.0, 1.0)] if num_panels % 2 else []
    rest = num_panels - len(first)
    return first + [(len(first) + n // 2, n % 2 / 2, 0.5) for n in range(rest)]


def png(history: History, title: str, scale: float = 1.0) -> bytes:
    """Draw one picture of a history that will not change."""
    return Card(title).png(Curves(history), scale)


def _left_out(hidden: list[Group]) -> str:
    return f"   (without {', '.join(group.metric for group in hidden)})"[:90] if hidden else ""


def _draw_panel(axes: Any, curves: list[Curve], last_step: int, metric: str) -> None:
    axes.set_title("", loc="left", fontsize=8.5, color=ink.FAINT, pad=4).update(ink.written(metric))
    for artist in (*axes.lines, *axes.collections, *axes.texts):
        artist.remove()
    shown = curves[:_MAX_LINES]
    for item, pen in zip(shown, _PENS, strict=False):
        _draw_line(axes, item, *pen)
    axes.set_xlim(0, max(1, last_step))
    set_heights(axes, Extent.of(shown, metric))
    _label_ends(axes, shown, len(curves) - len(shown))


def _draw_line(axes: Any, item: Curve, color: str, style: str, marker: str) -> None:
    axes.fill_between(item.steps, item.lows, item.highs, color=color, alpha=0.18, linewidth=0)
    axes.plot(
        item.steps,
        item.means,
        color=color,
        linestyle=style,
        linewidth=1.5,
        marker=marker if item.has_dots else None,
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


def set_heights(axes: Any, extent: Extent | None) -> None:
    """Let axes of matplotlib show ``extent``; without one they say no heights."""
    axes.yaxis.set_visible(extent is not None)
    scale = "log" if extent is not None and extent.is_log else "linear"
    if axes.get_yscale() != scale:
        axes.set_yscale(scale)
        axes.yaxis.set_minor_locator(NullLocator())
        if scale == "linear":
            axes.yaxis.set_major_formatter(_plain)
    axes.set_ylim(*((0, 1) if extent is None else (extent.low, extent.high)))


def _style(axes: Any, is_wide: bool, is_last: bool) -> None:
    ink.quiet(axes)
    axes.locator_params(axis="x", integer=True, nbins=8 if is_wide else 5)
    axes.locator_params(axis="y", nbins=5)
    axes.yaxis.set_major_formatter(_plain)
    if is_last:
        ink.name_steps(axes)


def _plain(value: float, position: int) -> str:
    return f"{value:.4g}"


def _label_ends(axes: Any, curves: list[Curve], num_hidden: int) -> None:
    """Write each line's name and newest value at its end, moved apart where they would touch."""
    to_axes = axes.transData + axes.transAxes.inverted()
    anchors = []
    for item, (color, _, _) in zip(curves, _PENS, strict=False):
        height = 0.95  # a value that is not finite stands beside its mark
        if np.isfinite(item.last):
            height = to_axes.transform((item.steps[-1], item.means[-1]))[1]
        anchors.append((float(height), item, color))
    floor = 0.06  # not so low that it would touch the steps
    for height, item, color in sorted(anchors, key=lambda anchor: anchor[0]):
        floor = max(height, floor)
        name = item.name if len(item.name) <= 11 else item.name[:10] + "…"
        text = f"{name}\n{words.said(item.name, item.last)}"
        alarm = color if np.isfinite(item.last) else _ALARM
        axes.annotate(
            xy=(1.02, floor),
            xycoords="axes fraction",
            color=alarm,
            fontsize=8.5,
            va="center",
            annotation_clip=False,
            **ink.written(text),
        )
        floor += 0.18
    if num_hidden:
        axes.annotate(
            f"+{num_hidden} more",
            (1.02, 1.0),
            xycoords="axes fraction",
            color=ink.FAINT,
            fontsize=8,
        )

"""Several runs side by side: one curve of each in one picture, and what they were asked for."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from notebook_accel.config.words import counted
from notebook_accel.errors import NoSuchSeries
from notebook_accel.events.records import Record
from notebook_accel.ui import ink, words
from notebook_accel.ui.curves import Curve, Curves, Extent
from notebook_accel.ui.place import place

WIDTH_PX, HEIGHT_PX = 720, 320
MAX_LINES = 8
MAX_LABEL = 24
MAX_NAMED = 4
_OF_ITSELF = ("num_threads", "start_method")  # follows from the rest: no room in a picture


class Comparison:
    """Runs next to each other: shows itself as a picture with its facts as text."""

    def __init__(self, runs: Sequence[Record], series: str) -> None:
        self.runs = list(runs)
        self.series = series
        self._with = [run for run in self.runs if series in run.history]
        if not self._with:
            known = sorted({name for run in self.runs for name in run.history})
            fix = "pass series= one of these names"
            if not known:
                fix = "call accelerator.backward(loss) or accelerator.log({...}) in the function"
            raise NoSuchSeries(
                f"none of these {counted(len(self.runs), 'run')} has a series {series!r}",
                f"they have: {', '.join(known)}" if known else "nothing was reported in them",
                fix,
            )

    def __repr__(self) -> str:
        lines = [f"{self.series} of {counted(len(self.runs), 'run')}"]
        width = max(len(run.id) for run in self.runs)
        for run in self.runs:
            parts = [run.ended, self._fact(run), *_given(self._differing(run))]
            lines.append(f"  {run.id.ljust(width)}  {words.SEPARATOR.join(parts)}")
        return "\n".join(lines)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        text = {"text/plain": repr(self)}
        if place().surface == "text":
            return text
        image = base64.b64encode(self.png(2.0)).decode()
        return {"image/png": image, **text}, {"image/png": {"width": WIDTH_PX}}

    def png(self, scale: float = 1.0) -> bytes:
        """Draw the picture as PNG bytes."""
        lines = [
            (self._label(run), Curves(run.history)[self.series]) for run in self._with[:MAX_LINES]
        ]
        return _draw(self.title, self.series, lines, scale)

    @property
    def title(self) -> str:
        """What stands above the picture: how many runs are in it, and which are not."""
        text = f"{self.series} of {counted(len(self._with), 'run')}"
        if len(self._with) > MAX_LINES:
            text += f", the first {MAX_LINES} shown"
        without = [run.id.rpartition("-")[2] for run in self.runs if run not in self._with]
        if without:
            many = counted(len(without), "run")
            names = ", ".join(without) if len(without) <= MAX_NAMED else many
            text += f"; no {self.series} in {names}"
        return text

    def _fact(self, run: Record) -> str:
        if self.series not in run.history:
            return f"no {self.series}"
        values, steps = run.history[self.series], run.history.steps(self.series)
        first, last = words.number(values[0]), words.number(values[-1])
        return f"{first} -> {last} at step {steps[-1]:,}"

    def _asked(self, run: Record) -> dict[str, Any]:
        return {**run.about.arguments, **run.about.config}

    def _differing(self, run: Record) -> dict[str, Any]:
        """What this run was asked for that not all of them were."""
        every = [self._asked(one) for one in self.runs]
        return {
            name: value
            for name, value in self._asked(run).items()
            if any(name not in other or other[name] != value for other in every)
        }

    def _label(self, run: Record) -> str:
        """Name a run's line: its letters, its newest value, and what it was asked for."""
        differing = self._differing(run)
        asked = " ".join(_given({n: v for n, v in differing.items() if n not in _OF_ITSELF}))
        asked = asked if len(asked) <= MAX_LABEL else asked[: MAX_LABEL - 1] + "…"
        newest = words.number(run.history.last(self.series))
        return f"{run.id.rpartition('-')[2]}  {newest}\n{asked}".rstrip()


def _given(asked: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in asked.items()]


def _draw(title: str, metric: str, lines: Sequence[tuple[str, Curve]], scale: float) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from notebook_accel.ui.plot import set_heights

    figure = Figure(figsize=(WIDTH_PX / 100, HEIGHT_PX / 100), facecolor="white", dpi=100 * scale)
    canvas: Any = FigureCanvasAgg(figure)
    heading = figure.text(16 / WIDTH_PX, 0.925, "", color=ink.INK, fontsize=10, weight="bold")
    heading.update(ink.written(title))
    axes: Any = figure.add_axes((56 / WIDTH_PX, 0.14, 1 - 252 / WIDTH_PX, 0.7))
    for number, (_, curve) in enumerate(lines):
        color, style = _pen(number)
        axes.fill_between(
            curve.steps, curve.lows, curve.highs, color=color, alpha=0.15, linewidth=0
        )
        axes.plot(curve.steps, curve.means, color=color, linestyle=style, linewidth=1.7)
    axes.set_xlim(0, max(1.0, *(float(curve.steps[-1]) for _, curve in lines)))
    set_heights(axes, Extent.of([curve for _, curve in lines], metric))
    ink.quiet(axes)
    ink.name_steps(axes)
    _write_labels(axes, lines)
    buffer = io.BytesIO()
    canvas.print_png(buffer, pil_kwargs={"compress_level": 6})
    return buffer.getvalue()


def _pen(number: int) -> tuple[str, str]:
    """Each color comes with each style before a pair is used again."""
    return ink.COLORS[number % 4], ink.STYLES[(number + number // 4) % 4]


def _write_labels(axes: Any, lines: Sequence[tuple[str, Curve]]) -> None:
    """Name each line at the right, in the order of their ends, with a piece of the line."""
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = []
    for number, (label, curve) in enumerate(lines):
        finite = curve.means[np.isfinite(curve.means)]
        height = to_axes.transform((0.0, finite[-1]))[1] if len(finite) else 1.0
        ends.append((float(height), number, label))
    floor = 0.0
    for height, number, label in sorted(ends):
        floor = max(min(height, 1.0), floor)
        color, style = _pen(number)
        axes.plot(
            (1.015, 1.06),
            (floor, floor),
            color=color,
            linestyle=style,
            linewidth=1.7,
            transform=axes.transAxes,
            clip_on=False,
        )
        axes.annotate(
            xy=(1.075, floor),
            xycoords="axes fraction",
            color=color,
            fontsize=8,
            va="center",
            annotation_clip=False,
            **ink.written(label),
        )
        floor += 0.13

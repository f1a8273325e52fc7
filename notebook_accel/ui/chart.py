"""Curves as SVG, for pages: sharp at any size, in the page's own colors, light or dark.

Colors come from the page's style (classes c0, c1, ...); lines differ by dashes as well, and each
one carries its name and newest value at its end. Nothing depends on color alone.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

import numpy as np

from notebook_accel.ui import words
from notebook_accel.ui.curves import Curve, Extent, Floats

WIDTH, HEIGHT = 720, 250
MAX_LINES = 6
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 596, 14, 214
_DASHES = ("", "7 4", "2 3", "9 3 2 3", "4 2", "1 4")
_LABEL_PX = 32

STYLE = """
.chart { display: block; width: 100%; height: auto; overflow: visible; }
.chart text { font: 11px system-ui, sans-serif; fill: var(--faint); }
.chart .name { font-size: 12px; font-weight: 600; }
.chart text.bad { fill: var(--bad); font-weight: 600; }
.chart .grid { stroke: var(--line); stroke-width: 1; }
.chart .axis { stroke: var(--faint); stroke-width: 1; }
.chart .curve { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
.chart .dots { stroke-width: 5.5; }
.chart .band { opacity: .16; stroke: none; }
.chart .alarm { stroke: var(--bad); stroke-width: 1.6; }
""" + "".join(
    f".chart .c{n} {{ stroke: var(--c{n % 4}); }} "
    f".chart text.c{n}, .chart .band.c{n} {{ fill: var(--c{n % 4}); stroke: none; }}\n"
    for n in range(MAX_LINES)
)


def svg(curves: Sequence[Curve], metric: str, label: str, last_step: int) -> str:
    """Draw curves of one number; ``label`` says in words what is to be seen.

    Charts of one page have the same ``last_step``, to be read one below the other.
    """
    shown = curves[:MAX_LINES]
    scale = _Scale(Extent.of(shown, metric), last_step)
    parts = [
        *_grid(scale),
        *(_line(curve, number, scale) for number, curve in enumerate(shown)),
        *_labels(shown, scale),
    ]
    if len(curves) > len(shown):
        more = f"+{len(curves) - len(shown)} more"
        parts.append(f'<text x="{_RIGHT + 12}" y="{_BOTTOM + 20}">{more}</text>')
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{html.escape(label)}">' + "".join(parts) + "</svg>"
    )


class _Scale:
    """From steps and values to places in the picture; without an extent it has no values."""

    def __init__(self, extent: Extent | None, last_step: int) -> None:
        self.last_step = max(1, last_step)
        self.is_empty = extent is None
        extent = extent or Extent(0.0, 1.0)
        self.is_log, self.low, self.high = extent.is_log, extent.low, extent.high
        if self.is_log:
            self.low, self.high = math.log10(extent.low), math.log10(extent.high)

    def x(self, steps: Floats) -> Floats:
        """Give where ``steps`` lie from left to right."""
        return _LEFT + steps / self.last_step * (_RIGHT - _LEFT)

    def y(self, values: Floats) -> Floats:
        """Give where ``values`` lie from top to bottom; NaN where a value is not finite."""
        with np.errstate(invalid="ignore", divide="ignore"):
            shown = np.log10(values) if self.is_log else values
        return _BOTTOM - (shown - self.low) / (self.high - self.low) * (_BOTTOM - _TOP)

    def ticks(self) -> list[tuple[float, str]]:
        """Give round values with their labels."""
        if self.is_empty:
            return []
        if not self.is_log:
            return [(value, _label(value)) for value in _round_steps(self.low, self.high, 5)]
        exponents = range(math.ceil(self.low), math.floor(self.high) + 1)
        every = max(1, len(exponents) // 5)
        return [(10.0**e, f"1e{e}" if abs(e) > 3 else f"{10.0**e:g}") for e in exponents[::every]]


def _round_steps(low: float, high: float, num: int) -> list[float]:
    size = (high - low) / num
    unit = 10.0 ** math.floor(math.log10(size))
    step = next(unit * one for one in (1, 2, 2.5, 5, 10) if unit * one >= size)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _label(value: float) -> str:
    return f"{round(value, 12):,g}" if abs(value) < 1e6 else f"{value:.3g}"


def _grid(scale: _Scale) -> Iterable[str]:
    for value, label in scale.ticks():
        y = float(scale.y(np.array([value]))[0])
        yield f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    yield f'<line class="axis" x1="{_LEFT}" x2="{_RIGHT}" y1="{_BOTTOM}" y2="{_BOTTOM}"/>'
    for step in _round_steps(0, scale.last_step, 6):
        if step == int(step):
            x = float(scale.x(np.array([step]))[0])
            yield f'<path class="axis" d="M{x:.1f},{_BOTTOM}v4"/>'
            yield f'<text x="{x:.1f}" y="{_BOTTOM + 17}" text-anchor="middle">{step:,.0f}</text>'
    middle = (_LEFT + _RIGHT) / 2
    yield f'<text x="{middle}" y="{HEIGHT - 3}" text-anchor="middle">optimizer step</text>'


def _line(curve: Curve, number: int, scale: _Scale) -> str:
    x, y = scale.x(curve.steps), scale.y(curve.means)
    parts = []
    if not curve.is_exact:
        top, bottom = scale.y(curve.highs), scale.y(curve.lows)
        keep = np.isfinite(top) & np.isfinite(bottom)
        edge = [*zip(x[keep], top[keep], strict=True)]
        edge += reversed([*zip(x[keep], bottom[keep], strict=True)])
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in edge)
        parts.append(f'<polygon class="band c{number}" points="{points}"/>')
    dashes = f' stroke-dasharray="{_DASHES[number]}"' if _DASHES[number] else ""
    parts.append(f'<path class="curve c{number}"{dashes} d="{_path(x, y)}"/>')
    if curve.has_dots:
        dots = "".join(f"M{a:.1f},{b:.1f}h0" for a, b in zip(x, y, strict=True) if math.isfinite(b))
        parts.append(f'<path class="curve dots c{number}" d="{dots}"/>')
    for step in curve.broken[:50]:
        at = float(scale.x(np.array([step]))[0])
        parts.append(
            f'<path class="alarm" d="M{at - 4:.1f},{_TOP - 4}l8,8m0,-8l-8,8">'
            f"<title>{html.escape(curve.name)} is not finite at step {step:,.0f}</title></path>"
        )
    return "".join(parts)


def _path(x: Floats, y: Floats) -> str:
    """A line that breaks where a value is missing; one point alone is drawn as a dot."""
    words_of_path = []
    pen = "M"
    for a, b in zip(x, y, strict=True):
        if not math.isfinite(b):
            pen = "M"
            continue
        words_of_path.append(f"{pen}{a:.1f},{b:.1f}")
        pen = "L"
    return "".join(words_of_path) + ("h0.1" if len(words_of_path) == 1 else "")


def _labels(curves: Sequence[Curve], scale: _Scale) -> Iterable[str]:
    """Name each line at its end, moved apart where names would touch."""
    wanted = []
    for number, curve in enumerate(curves):
        finite = curve.means[np.isfinite(curve.means)]
        y = float(scale.y(finite[-1:])[0]) if len(finite) else float(_TOP)
        wanted.append((y, number))
    places = _apart([y for y, _ in sorted(wanted)])
    for y, (_, number) in zip(places, sorted(wanted), strict=True):
        curve = curves[number]
        name = curve.name if len(curve.name) <= 15 else curve.name[:14] + "…"
        dashes = f' stroke-dasharray="{_DASHES[number]}"' if _DASHES[number] else ""
        bad = "" if math.isfinite(curve.last) else ' class="bad"'
        newest = words.said(curve.name, curve.last)
        yield (
            f'<path class="curve c{number}"{dashes} d="M{_RIGHT + 6},{y:.1f}h16"/>'
            f'<text class="name c{number}" x="{_RIGHT + 28}" y="{y + 4:.1f}">'
            f"{html.escape(name)}</text>"
            f'<text{bad} x="{_RIGHT + 28}" y="{y + 17:.1f}">{newest}</text>'
        )


def _apart(wanted: list[float]) -> list[float]:
    """Move rising places apart, the last ones upwards where the picture ends."""
    places: list[float] = []
    for y in wanted:
        places.append(max(y, places[-1] + _LABEL_PX) if places else y)
    ceiling = _BOTTOM - 10.0
    for index in reversed(range(len(places))):
        places[index] = min(places[index], ceiling)
        ceiling = places[index] - _LABEL_PX
    return places

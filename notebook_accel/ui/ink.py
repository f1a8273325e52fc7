"""The colors and the quiet axes of pictures: a white card, legible in light and in dark pages.

Lines differ by style as well: nothing depends on color alone.
"""

from __future__ import annotations

from typing import Any

INK, FAINT, GRID = "#24292f", "#57606a", "#e4e7eb"
COLORS = ("#1763a6", "#b04a00", "#2f7031", "#6f42a8")
STYLES = ("solid", "dashed", "dashdot", "dotted")


def quiet(axes: Any) -> None:
    """Leave of the axes of matplotlib what is read: faint lines across, and the line of steps."""
    axes.grid(True, axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(colors=FAINT, labelsize=8, length=0, axis="y")
    axes.tick_params(colors=FAINT, labelsize=8, length=3, axis="x")


def name_steps(axes: Any) -> None:
    """Say below the axes that they count optimizer steps."""
    axes.set_xlabel("optimizer step", fontsize=8, color=FAINT, labelpad=2)

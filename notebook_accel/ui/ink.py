"""The colors and the quiet axes of pictures: a white card, legible in light and in dark pages.

Lines differ by style as well: nothing depends on color alone.
"""

from __future__ import annotations

import functools
from typing import Any

INK, FAINT, GRID = "#24292f", "#57606a", "#e4e7eb"
COLORS = ("#1763a6", "#b04a00", "#2f7031", "#6f42a8")
STYLES = ("solid", "dashed", "dashdot", "dotted")


# What writes the languages that matplotlib's own font does not, where one of them is installed.
_FONTS = (
    *("Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans CJK KR", "WenQuanYi Zen Hei"),
    *("Hiragino Sans", "PingFang SC", "Apple SD Gothic Neo", "Arial Unicode MS"),
    *("Yu Gothic", "Microsoft YaHei", "Malgun Gothic", "Noto Sans", "Noto Emoji"),
)
_UNKNOWN = "□"


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


def written(text: str) -> dict[str, Any]:
    """Give what matplotlib needs to write ``text`` as it is: no formulas, no missing glyphs."""
    names, known = _fonts()
    legible = "".join(one if ord(one) in known or one == "\n" else _UNKNOWN for one in text)
    return {"text": legible, "parse_math": False, "fontfamily": names}


@functools.cache
def _fonts() -> tuple[list[str], frozenset[int]]:
    """Name the fonts to write with, and all characters that they have."""
    from matplotlib import font_manager

    here = {font.name for font in font_manager.fontManager.ttflist}
    names = ["DejaVu Sans", *(name for name in _FONTS if name in here)]
    fonts = [font_manager.get_font(font_manager.findfont(name)) for name in names]
    return names, frozenset(code for font in fonts for code in font.get_charmap())

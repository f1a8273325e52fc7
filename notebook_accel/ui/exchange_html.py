"""An exchange as a picture: a table of numbers that takes its ink from the page, light or dark.

Each number carries its ranks twice: as a bar of their colors and in words below it. The style is
written on the elements, for a page may drop what stands apart.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from notebook_accel.config.words import ranks
from notebook_accel.ui.exchange_text import come_from, headline, holds, number

if TYPE_CHECKING:
    from notebook_accel.ui.exchange import Exchange

# One for each rank, told apart with any color vision and on light and dark pages alike.
COLORS = ("#2f86c9", "#d9822b", "#2a9d78", "#b565c4", "#8a8d91", "#c2a200", "#56b4e9", "#d1594b")
_FAINT = "opacity:.75"
_QUIET = "border:0;background:transparent;vertical-align:middle;text-align:left"
_CELL = (
    "display:inline-block;min-width:2.5em;margin:2px;padding:3px 4px 0;text-align:center;"
    "border:1px solid rgba(127,127,127,.55);border-radius:4px;line-height:1.25;"
    "font-variant-numeric:tabular-nums;vertical-align:middle"
)


def picture(shown: Exchange) -> str:
    """The buffers before and after, a row for each rank."""
    rows = "".join(_row(shown, rank) for rank in range(shown.num_ranks))
    style = f"{_QUIET};font-weight:normal;padding:0 14px 2px 0;{_FAINT}"
    names = ("", "before", "", "after")
    heads = "".join(f'<th scope="col" style="{style}">{name}</th>' for name in names)
    return (
        '<div style="font-size:14px;line-height:1.4;overflow-x:auto;padding:4px 0">'
        f'<div style="margin-bottom:4px">{_headline(shown)}</div>'
        '<table style="border-collapse:collapse;border:0;margin:0">'
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        f'<div style="font-size:12px;{_FAINT}">below each number: the ranks that are in it</div>'
        f"{_problem(shown)}</div>"
    )


def _headline(shown: Exchange) -> str:
    name, _, rest = headline(shown).partition(" ")
    return f"<b>{escape(name)}</b> {escape(rest)}"


def _row(shown: Exchange, rank: int) -> str:
    before = "".join(_cell(value, (rank,)) for value in shown.before[rank])
    cells = [f"<b>rank {rank}</b>", before, "&rarr;", _after(shown, rank)]
    body = "".join(
        f'<td style="{_QUIET};padding:1px 14px 1px 0;white-space:nowrap">{one}</td>'
        for one in cells
    )
    return f'<tr style="background:transparent">{body}</tr>'


def _after(shown: Exchange, rank: int) -> str:
    if shown.after is None:
        return f'<span style="{_FAINT}">{escape(holds(shown, rank))}</span>'
    numbers = zip(shown.after[rank], shown.origins[rank], strict=True)
    return "".join(_cell(value, origin) for value, origin in numbers)


def _cell(value: float, origin: tuple[int, ...]) -> str:
    """A number over the ranks that are in it."""
    share = 100 / len(origin)
    stops = ", ".join(
        f"{COLORS[rank]} {share * i:.1f}% {share * (i + 1):.1f}%" for i, rank in enumerate(origin)
    )
    bar = f"display:block;height:5px;margin:2px -4px 0;background:linear-gradient(90deg, {stops})"
    return (
        f'<span style="{_CELL}" title="from {ranks(origin)}">{number(value)}'
        f'<span style="display:block;font-size:10px;{_FAINT}">{come_from(origin)}</span>'
        f'<span style="{bar}"></span></span>'
    )


def _problem(shown: Exchange) -> str:
    """What the toolkit said of ranks that got stuck."""
    if shown.error is None:
        return ""
    style = "border-left:4px solid #d1442f;padding-left:8px;margin-top:8px;white-space:pre-wrap"
    said = f"{type(shown.error).__name__}: {shown.error}"
    return f'<div role="alert" style="{style}">{escape(said)}</div>'

"""The panel as static HTML and as text, where no widget is drawn and when the run is over.

It takes its colors from the page: legible in light and dark, and without any script.
"""

from __future__ import annotations

import html

from notebook_accel.ui.panel import Panel

MAX_ROWS = 16
MAX_FACTS = 8
_FAINT = "opacity:.75"


def running(panel: Panel) -> str:
    """Where the run is: bar, line, what to look at, one line for each rank."""
    rows = [row.text() for row in panel.ranks.rows()]
    parts = [
        f"<div>{_bar(panel)}{_text(panel.line)}</div>",
        *_alarms(panel),
        *(f'<div style="{_FAINT}">… {_text(task)}</div>' for task in panel.tasks()),
        _rows(rows),
    ]
    if panel.hint:
        parts.append(f'<div style="{_FAINT};font-size:12px">{_text(panel.hint)}</div>')
    return _card(parts)


def ended(panel: Panel, facts: str) -> str:
    """How the run went, in words."""
    rows = panel.ranks.last_rows() if panel.num_ranks > 1 else []
    lines = facts.splitlines()
    parts = [f"<div>{_text(panel.line)}</div>", *_alarms(panel)]
    parts.append("<div>" + _text("\n".join(lines[:MAX_FACTS])) + "</div>")
    if len(lines) > MAX_FACTS:
        rest = _text("\n".join(lines[MAX_FACTS:]))
        more = f"{len(lines) - MAX_FACTS} more curves"
        parts.append(f"<details><summary>{more}</summary>{rest}</details>")
    return _card([*parts, _rows(rows)])


def as_text(panel: Panel, facts: str = "") -> str:
    """The same as lines of text."""
    rows: list[str] = []
    if panel.num_ranks > 1:
        rows = panel.ranks.last_rows() if panel.over else [r.text() for r in panel.ranks.rows()]
    alarms = [f"▲ {text}" for text in panel.alarms.texts]
    lines = [panel.line, *alarms, facts, *panel.tasks(), *rows[:MAX_ROWS]]
    return "\n".join(line for line in lines if line)


def _card(parts: list[str]) -> str:
    style = "padding:2px 8px;font-size:13px;line-height:1.5;font-variant-numeric:tabular-nums"
    return f'<div style="{style}">{"".join(parts)}</div>'


def _bar(panel: Panel) -> str:
    fraction = panel.fraction
    if fraction is None:
        return ""
    shape = "height:6px;border-radius:3px"
    return (
        f'<span role="img" aria-label="{fraction:.0%} of {panel.epoch}" '
        f'style="display:inline-block;width:140px;{shape};margin-right:10px;'
        'vertical-align:middle;background:rgba(127,127,127,.3)">'
        f'<span style="display:block;width:{100 * fraction:.0f}%;{shape};'
        'background:#2f86c9"></span></span>'
    )


def _alarms(panel: Panel) -> list[str]:
    style = "border-left:4px solid #d1442f;padding-left:8px;font-weight:600"
    return [f'<div style="{style}">▲ {_text(text)}</div>' for text in panel.alarms.texts]


def _rows(rows: list[str]) -> str:
    if not rows:
        return ""
    lines = [_text(row) for row in rows[:MAX_ROWS]]
    if len(rows) > MAX_ROWS:
        lines.append(f"and {len(rows) - MAX_ROWS} more ranks")
    return f'<div style="{_FAINT};font-size:12px">{"<br>".join(lines)}</div>'


def _text(text: str) -> str:
    return html.escape(text).replace("\n", "<br>").replace("-&gt;", "→")

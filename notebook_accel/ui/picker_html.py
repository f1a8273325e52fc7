"""What a picker says beside its controls, as HTML that takes its ink from the page's theme.

Nothing is told by color alone: severities are words, marks are words with a sign of their own.
"""

from __future__ import annotations

from html import escape

from notebook_accel.launch.precisions import Mark, Standing
from notebook_accel.ui import menu
from notebook_accel.ui.outlook import Finding
from notebook_accel.ui.picker_state import State
from notebook_accel.ui.picker_text import (
    ACTIVATIONS,
    by_precision,
    by_strategy,
    meaning,
    measured_on,
    standing_words,
    timing_rows,
)

SIGNS: dict[Mark, str] = {
    "native": "●",
    "emulated": "◐",
    "slow": "◔",
    "unknown": "?",
    "absent": "○",
}
_RULE = "1px solid var(--jp-border-color2, rgba(127, 127, 127, .45))"
STYLE = f"""<style>
.nba-picker {{ max-width: 80em; }}
.nba-picker .nba-side {{ flex: 1 1 27em; min-width: 18em; padding: 0 1.5em 0 0; }}
.nba-picker .widget-html, .nba-picker .widget-html-content {{ height: auto; line-height: 1.45;
  white-space: normal; overflow: visible; }}
.nba-picker .nba-side > *, .nba-picker .widget-html-content {{ min-width: 0; max-width: 100%; }}
.nba-picker .widget-label {{ flex: 0 0 7.5em; text-align: left; overflow: visible; }}
.nba-picker .widget-radio {{ display: flex; width: auto; margin: 2px; }}
.nba-picker .widget-radio .widget-label {{ line-height: 1.5; padding-top: 1px; }}
.nba-picker .widget-radio-box {{ width: auto; flex: 1 1 auto;
  margin: 0 0 0 6px !important; }}
.nba-picker .widget-radio-box label, .nba-picker .widget-checkbox label {{ display: flex;
  align-items: flex-start; width: auto; height: auto; line-height: 1.5; padding: 1px 0;
  white-space: normal; }}
.nba-picker .widget-checkbox {{ height: auto; }}
.nba-picker .widget-radio-box input[type], .nba-picker .widget-checkbox input[type] {{ order: -1;
  float: none; flex: none; align-self: flex-start; width: 13px; height: 13px;
  margin: 4px 8px 0 1px; }}
.nba-picker input:focus-visible, .nba-picker button:focus-visible, .nba-picker pre:focus-visible
  {{ outline: 2px solid currentColor; outline-offset: 2px; }}
.nba-picker h4 {{ margin: .2em 0 .3em; font-size: 1em; font-weight: 600; }}
.nba-picker p {{ margin: 0 0 .35em; }}
.nba-picker .nba-why {{ opacity: .8; }}
.nba-picker table {{ border-collapse: collapse; margin: .5em 0; }}
.nba-picker th, .nba-picker td {{ padding: .1em 1em .1em 0; text-align: left;
  font-weight: normal; font-variant-numeric: tabular-nums; white-space: nowrap; }}
.nba-picker thead th {{ border-bottom: {_RULE}; white-space: normal; vertical-align: bottom; }}
.nba-picker .nba-picked {{ font-weight: 600; }}
.nba-picker pre {{ margin: .2em 0 0; padding: .5em .7em; border: {_RULE}; border-radius: 3px;
  white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere; user-select: all;
  color: inherit; background: transparent;
  font-family: var(--jp-code-font-family, monospace); font-size: .95em; }}
</style>"""


def standing_label(one: Standing) -> str:
    """Name a precision in a control: "bf16 ● native (AVX512-BF16)"."""
    return f"{one.precision} {SIGNS[one.mark]} {standing_words(one)}"


def strategy_label(strategy: str) -> str:
    """Name a strategy in a control: "fsdp: ..."."""
    words = menu.WORDS.get(strategy)
    return f"{strategy}: {words}" if words else strategy


def told(state: State) -> str:
    """What the choice means, and what was found."""
    sentences = "".join(f"<p>{escape(one)}</p>" for one in meaning(state))
    findings = "".join(map(_finding, state.outlook.findings))
    return f'<h4>What this means</h4><div role="status">{sentences}{findings}</div>'


def absent(state: State) -> str:
    """The precisions that cannot be picked, and why."""
    return "".join(
        f'<p class="nba-why">{escape(standing_label(one))}</p>'
        for one in state.standings
        if not one.can_be_picked
    )


def numbers(state: State) -> str:
    """What a rank holds, by precision and by strategy, and what was measured."""
    memory, timed = by_precision(state), timing_rows(state.fresh_timings)
    picked = state.choice.mixed_precision
    parts = [_table(memory, picked)] if memory else []
    strategies = by_strategy(state)
    parts += [_table(strategies, "")] if strategies else []
    parts += [f'<p class="nba-why">{ACTIVATIONS}</p>'] if memory else []
    if timed:
        where = f'<p class="nba-why">{escape(measured_on(state.fresh_timings))}</p>'
        parts.append(f'<div role="status">{_table(timed, picked)}{where}</div>')
    return "".join(parts)


def code(state: State) -> str:
    """The line that makes the same choice, selected as a whole by a click."""
    label = "The line that makes this choice; a click selects it"
    return (
        f'<h4>{label}</h4><pre tabindex="0" role="textbox" aria-readonly="true" '
        f'aria-label="{label}"><code>{escape(state.code)}</code></pre>'
    )


def _finding(one: Finding) -> str:
    fix = f" ({escape(one.fix)})" if one.fix else ""
    return f"<p><strong>{one.severity}:</strong> {escape(one.text)}{fix}</p>"


def _table(rows: list[list[str]], picked: str) -> str:
    """Rows of cells under a header of precisions; the picked one's column stands out."""
    header, *lines = rows
    marked = [' class="nba-picked"' if name and name == picked else "" for name in header]
    names = [f"{name} (chosen)" if name and name == picked else name for name in header]
    head = "".join(
        f'<th scope="col"{mark}>{escape(name)}</th>'
        for name, mark in zip(names, marked, strict=True)
    )
    body = "".join(
        f'<tr><th scope="row">{escape(label)}</th>'
        + "".join(
            f"<td{mark}>{escape(cell)}</td>" for cell, mark in zip(cells, marked[1:], strict=False)
        )
        + "</tr>"
        for label, *cells in lines
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div style="overflow-x: auto">{table}</div>'

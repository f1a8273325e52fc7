"""What a picker says beside its controls, as HTML that takes its ink from the page's theme.

Nothing is told by color alone: severities are words, marks are words with a sign of their own.
"""

from __future__ import annotations

from html import escape

from notebook_accel.config.settings import SETTINGS
from notebook_accel.launch.precisions import Mark, Standing
from notebook_accel.ui.outlook import Finding
from notebook_accel.ui.picker_state import State
from notebook_accel.ui.picker_text import MEMORY_COLUMNS, memory_cells, timings_words

SIGNS: dict[Mark, str] = {
    "native": "●",
    "emulated": "◐",
    "slow": "◔",
    "unknown": "?",
    "absent": "○",
}
_RULE = "1px solid var(--jp-border-color2, rgba(127, 127, 127, .45))"
STYLE = f"""<style>
.nba-picker {{ max-width: 62em; }}
.nba-picker .nba-side {{ flex: 1 1 22em; padding: 0 1em 0 0; min-width: 20em; }}
.nba-picker .widget-html, .nba-picker .widget-html-content, .nba-picker .jupyter-widget-html-content
  {{ height: auto; line-height: 1.45; white-space: normal; overflow: visible; }}
.nba-picker .widget-radio-box {{ width: auto; }}
.nba-picker .widget-radio-box label {{ width: auto; height: auto; line-height: 1.5;
  white-space: normal; padding: 1px 0; }}
.nba-picker .widget-label {{ text-align: left; }}
.nba-picker input:focus-visible, .nba-picker button:focus-visible, .nba-picker pre:focus-visible
  {{ outline: 2px solid currentColor; outline-offset: 2px; }}
.nba-picker h4 {{ margin: .2em 0 .3em; font-size: 1em; font-weight: 600; }}
.nba-picker p {{ margin: 0 0 .35em; }}
.nba-picker .nba-why {{ opacity: .8; }}
.nba-picker table.nba-memory {{ border-collapse: collapse; margin: .4em 0; font-size: .95em; }}
.nba-picker table.nba-memory th, .nba-picker table.nba-memory td
  {{ padding: .1em .7em .1em 0; text-align: right; font-weight: normal; white-space: nowrap; }}
.nba-picker table.nba-memory thead th {{ border-bottom: {_RULE}; }}
.nba-picker table.nba-memory th:first-child {{ text-align: left; }}
.nba-picker table.nba-memory tr.nba-picked th, .nba-picker table.nba-memory tr.nba-picked td
  {{ font-weight: 600; }}
.nba-picker pre {{ margin: .2em 0 0; padding: .5em .7em; border: {_RULE}; border-radius: 3px;
  white-space: pre-wrap; user-select: all; color: inherit; background: transparent;
  font-family: var(--jp-code-font-family, monospace); font-size: .95em; }}
</style>"""


def help_words(name: str) -> str:
    """What a setting is, from its declaration."""
    return f'<p class="nba-why">{escape(SETTINGS[name].help)}</p>'


def standing_label(one: Standing) -> str:
    """Name a precision in a control: "bf16  ● native (AVX512-BF16)"."""
    return f"{one.precision}  {SIGNS[one.mark]} {one.mark} ({one.why})"


def meaning(state: State) -> str:
    """What the choice means: ranks, batch, memory, findings."""
    told = state.outlook
    parts = []
    if "num_processes" in state.asked:
        parts += [f"<p>{escape(told.ranks)}</p>", f"<p>{escape(told.batch)}</p>"]
    if "mixed_precision" in state.asked:
        parts.append(f'<p class="nba-why">{escape(told.precision)}</p>')
    parts += [_memory(state), *map(_finding, told.findings)]
    inside = "".join(parts)
    if not inside:
        return ""
    return f'<div role="status" aria-live="polite"><h4>What this means</h4>{inside}</div>'


def absent(state: State) -> str:
    """The precisions that cannot be picked, and why."""
    return "".join(
        f'<p class="nba-why">{escape(standing_label(one))}</p>'
        for one in state.standings
        if not one.can_be_picked
    )


def measured(state: State) -> str:
    """What was measured on the chosen device."""
    words = timings_words(state.fresh_timings)
    return f'<div role="status"><p>{escape(words)}</p></div>' if words else ""


def code(state: State) -> str:
    """The line that makes the same choice, selected as a whole by a click."""
    label = "The line that makes this choice; a click selects it"
    return (
        f'<h4>{label}</h4><pre tabindex="0" role="textbox" aria-readonly="true" '
        f'aria-label="{label}"><code>{escape(state.code)}</code></pre>'
    )


def problem(text: str) -> str:
    """An error, in place."""
    lines = "<br>".join(map(escape, text.splitlines()))
    return f'<div role="alert"><p><strong>error:</strong> {lines}</p></div>'


def _finding(one: Finding) -> str:
    fix = f" ({escape(one.fix)})" if one.fix else ""
    return f"<p><strong>{one.severity}:</strong> {escape(one.text)}{fix}</p>"


def _memory(state: State) -> str:
    rows = state.outlook.memory
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{one}</th>' for one in ("a rank holds", *MEMORY_COLUMNS))
    body = ""
    for row in rows:
        picked = row.precision == state.choice.mixed_precision
        cells = "".join(f"<td>{cell}</td>" for cell in memory_cells(row))
        name = f"{row.precision} (chosen)" if picked else row.precision
        body += (
            f'<tr{" class=nba-picked" if picked else ""}><th scope="row">{name}</th>{cells}</tr>'
        )
    return (
        f'<table class="nba-memory"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        '<p class="nba-why">activations come on top: bf16 and fp16 halve most of them</p>'
    )

"""A run as one HTML file that needs nothing else: to read, to print, to send to somebody.

No script, no outside asset; light or dark as the reader's system is, white on paper.
"""

from __future__ import annotations

import html
import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from notebook_accel.config.words import counted
from notebook_accel.errors import ConfigError
from notebook_accel.events.records import LOST, Record
from notebook_accel.ui import chart, words
from notebook_accel.ui.curves import Curves
from notebook_accel.ui.report_style import STYLE
from notebook_accel.ui.runs import MARKS
from notebook_accel.ui.series import groups, pictures

MAX_LOG_LINES = 200
_TONES = {"finished": "good", "stopped": "calm", "running": "calm"}


def write(record: Record, path: Path) -> Path:
    """Write the report of ``record`` to ``path``, and give that.

    Errors: ConfigError where no file can be written.
    """
    text = page(record)
    try:
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(
            f"the report cannot be written to {path}",
            f"the system says: {error.strerror or error}",
            'pass a file in a folder that is there and yours: run.report("report.html")',
        ) from error
    return path


def page(record: Record) -> str:
    """Give the whole page."""
    title = html.escape(record.about.title)
    parts = [
        _head(record),
        _error(record),
        _numbers(record),
        _charts(record),
        _ranks(record),
        _warnings(record),
        _asked(record),
        _surroundings(record),
        _logs(record),
        _foot(record),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n<style>{STYLE}{chart.STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _head(record: Record) -> str:
    about = record.about
    tone = _TONES.get(record.ended, "bad")
    started = time.strftime("%A, %-d %B %Y, %H:%M", time.localtime(about.started))
    facts = [started, about.notebook, about.id]
    line = words.SEPARATOR.join(html.escape(fact) for fact in facts if fact)
    mark = MARKS.get(record.ended, "?")
    return (
        f'<header><p class="state {tone}"><span aria-hidden="true">{mark}</span> '
        f"{html.escape(record.ended)}</p><h1>{html.escape(about.function)}"
        f'<small> on {html.escape(about.devices)}</small></h1><p class="faint">{line}</p></header>'
    )


def _error(record: Record) -> str:
    if record.story.error:
        return f'<pre class="error">{html.escape(record.story.error)}</pre>'
    if record.ended == LOST:
        return (
            f'<p class="error">The kernel ended at step {record.step:,} or soon after; this is '
            "what had been written down by then.</p>"
        )
    return ""


def _numbers(record: Record) -> str:
    """The few numbers that a reader looks for first."""
    history, story = record.history, record.story
    cards: list[tuple[str, str, str]] = []
    if history.get("loss"):
        first, last = history["loss"][0], history["loss"][-1]
        note = f"from {words.number(first)}"
        best, at = min(words.finite_points(history, "loss"), default=(math.nan, 0))
        if math.isfinite(best) and best != last:
            note += f", best {words.number(best)} at {at:,}"
        cards.append(("loss", words.number(last), note))
    stepped = any(rank.step for rank in story.ranks) or not record.step
    name = "optimizer steps" if stepped else "steps logged"
    cards.append((name, f"{record.step:,}", _passes(record)))
    samples = sum(rank.samples for rank in story.ranks)
    if samples:
        pace = f"{words.rate(samples / story.took_s)} a second" if story.took_s else ""
        cards.append(("samples", f"{samples:,}", pace))
    if story.took_s:
        cards.append(("took", words.duration(story.took_s), "with start and end"))
    return (
        '<section class="cards">'
        + "".join(
            f'<div><p class="faint">{name}</p><p class="big">{html.escape(value)}</p>'
            f'<p class="faint">{html.escape(note) or "&nbsp;"}</p></div>'
            for name, value, note in cards
        )
        + "</section>"
    )


def _passes(record: Record) -> str:
    first = record.story.ranks[0]
    if first.from_step:
        return f"{first.step - first.from_step:,} in this run, from step {first.from_step:,}"
    return f"in {first.epoch + 1} passes over the data" if first.epoch else ""


def _charts(record: Record) -> str:
    history, curves = record.history, Curves(record.history)
    drawn = {group.metric: group.names for group in pictures(history)}
    figures = []
    for group in groups(history):
        said = [words.fact(history, name) for name in group.names]
        picture = ""
        if group.metric in drawn:
            members = [curves[name] for name in drawn[group.metric]]
            image = chart.svg(members, group.metric, "; ".join(said), curves.last_step)
            picture = f'<div class="wide">{image}</div>'
        lines = "<br>".join(html.escape(line).replace("-&gt;", "→") for line in said)
        figures.append(
            f"<figure><h3>{html.escape(group.metric)}</h3>{picture}"
            f"<figcaption>{lines}</figcaption></figure>"
        )
    body = "".join(figures) or '<p class="faint">Nothing was reported.</p>'
    return f"<section><h2>Curves</h2>{body}</section>"


def _ranks(record: Record) -> str:
    head = ("rank", "device", "threads", "steps", "samples", "waited for data", "how it ended")
    rows = []
    for number, rank in enumerate(record.story.ranks):
        wait = words.duration(rank.data_wait_s) if rank.data_wait_s else ""
        if wait and record.story.took_s:
            wait += f" ({rank.data_wait_s / record.story.took_s:.0%})"
        rows.append(
            (
                str(number),
                rank.device or "not started",
                str(rank.num_threads or ""),
                f"{rank.step:,}",
                f"{rank.samples:,}",
                wait,
                rank.ended or ("running" if record.ended == "running" else "lost"),
            )
        )
    return f"<section><h2>Ranks</h2>{_table(head, rows, numbers={0, 2, 3, 4, 5})}</section>"


def _warnings(record: Record) -> str:
    warnings, tasks = record.story.warnings, record.story.tasks
    parts = []
    if warnings:
        items = "".join(
            f"<li>{html.escape(text)}"
            + (f' <span class="faint">&times;{count}</span>' if count > 1 else "")
            + "</li>"
            for text, count in warnings.items()
        )
        parts.append(f"<section><h2>Warnings</h2><ul>{items}</ul></section>")
    if long := {name: words.duration(took) for name, took in tasks.items() if took >= 1}:
        parts.append(f"<section><h2>What took long</h2>{_pairs(long)}</section>")
    return "".join(parts)


def _asked(record: Record) -> str:
    about = record.about
    parts = [f"<div><h3>Launch</h3>{_pairs(about.config)}</div>"]
    if about.arguments:
        parts.append(
            f"<div><h3>Arguments of {html.escape(about.function)}</h3>"
            f"{_pairs(about.arguments)}</div>"
        )
    return f'<section><h2>What was asked for</h2><div class="pair">{"".join(parts)}</div></section>'


def _surroundings(record: Record) -> str:
    about = record.about
    parts = [f"<div><h3>Machine</h3>{_pairs(about.machine)}</div>"]
    if about.environment:
        parts.append(f"<div><h3>Variables</h3>{_pairs(about.environment)}</div>")
    return f'<section><h2>Where it ran</h2><div class="pair">{"".join(parts)}</div></section>'


def _logs(record: Record) -> str:
    folds = []
    for rank, text in enumerate(record.logs):
        lines = text.splitlines()
        if lines:
            left = len(lines) - MAX_LOG_LINES
            cut = f"... {left:,} lines before\n" if left > 0 else ""
            shown = html.escape(cut + "\n".join(lines[-MAX_LOG_LINES:]))
            num = f'<span class="faint">{counted(len(lines), "line")}</span>'
            folds.append(
                f"<details><summary>rank {rank} {num}</summary><pre>{shown}</pre></details>"
            )
    return f"<section><h2>Output</h2>{''.join(folds)}</section>" if folds else ""


def _foot(record: Record) -> str:
    now = time.strftime("%Y-%m-%d %H:%M")
    where = f"; the record lies in {html.escape(str(record.path))}" if record.path else ""
    return f'<footer class="faint">Written by notebook_accel, {now}{where}.</footer>'


def _table(head: Iterable[str], rows: Iterable[Iterable[str]], numbers: set[int]) -> str:
    def cells(tag: str, row: Iterable[str]) -> str:
        return "".join(
            f"<{tag}{' class=num' if column in numbers else ''}>{html.escape(cell)}</{tag}>"
            for column, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f'<div class="wide"><table><thead><tr>{cells("th", head)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _pairs(values: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><th>{html.escape(str(name))}</th><td>{html.escape(_said(value))}</td></tr>"
        for name, value in values.items()
    )
    return f'<table class="pairs"><tbody>{rows}</tbody></table>'


def _said(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_said, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_said(one)}" for name, one in value.items())
    return str(value)

"""``notebook_accel.runs``: the runs on record, of this notebook and others, now and before.

Records lie in the folder that NOTEBOOK_ACCEL_RUNS names, else in the person's data folder; the
last 100 runs or 1 GB are kept. A run that goes on is there too, as far as it is.
"""

from __future__ import annotations

import builtins
import html
import time
from collections.abc import Iterable, Sequence
from typing import Any, overload

from notebook_accel.errors import ConfigError, NoSuchRun
from notebook_accel.events import records, shelf
from notebook_accel.events.records import Record
from notebook_accel.ui import words
from notebook_accel.ui.compare import Comparison

__all__ = ["compare", "get", "last", "list"]

MARKS = {"finished": "✓", "stopped": "■", "failed": "✗", "running": "▶", records.LOST: "†"}
MAX_NAME = 28
_COLUMNS = ("run", "started", "what", "how it ended", "steps", "loss", "took", "notebook")
_RIGHT = {"steps", "took"}
_WRAPPED = {"what", "how it ended", "notebook"}


class RunList(Sequence[Record]):
    """Runs on record, the newest first; shows itself as a table."""

    def __init__(self, runs: Iterable[Record]) -> None:
        self._runs = builtins.list(runs)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> RunList: ...
    def __getitem__(self, index: int | slice) -> Record | RunList:
        return RunList(self._runs[index]) if isinstance(index, slice) else self._runs[index]

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        if not self._runs:
            trouble = shelf.trouble()
            return f"no runs on record{f': {trouble}' if trouble else _where()}"
        rows = [_COLUMNS, *(_row(run) for run in self._runs)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                cell.rjust(width) if name in _RIGHT else cell.ljust(width)
                for name, cell, width in zip(_COLUMNS, row, widths, strict=True)
            ).rstrip()
            for row in rows
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        if not self._runs:
            return f"<p>{html.escape(repr(self))}</p>"
        head = "".join(f'<th style="{_style(name)}">{name}</th>' for name in _COLUMNS)
        body = "".join(
            "<tr>"
            + "".join(
                f'<td style="{_style(name)}">{html.escape(cell)}</td>'
                for name, cell in zip(_COLUMNS, _row(run), strict=True)
            )
            + "</tr>"
            for run in self._runs
        )
        return (
            '<div style="max-width:100%;overflow-x:auto">'
            '<table style="font-variant-numeric:tabular-nums;border-collapse:collapse">'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )


def list(limit: int = 20) -> RunList:
    """List the newest ``limit`` runs on record.

    Errors: ConfigError for what is no number of runs.
    """
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ConfigError(
            f"runs.list({limit!r:.80})",
            "it lists so many runs, the newest first",
            'write runs.list(5), or runs.get("k3f") for the one with this in its name',
        )
    return RunList(_newest(limit))


def last() -> Record:
    """Give the newest run on record: after an interrupt, a reload, a restart, from any notebook.

    Errors: NoSuchRun where nothing is on record.
    """
    for run in _newest(1):
        return run
    raise _nothing("nothing is on record" + _where())


def get(which: str | int | Any) -> Record:
    """Give one run: by its name or a part of it, as "k3f", or by its place in the list.

    What has a record (a ``Run``, a ``RunResult``, what ``RunInterrupted`` carries) gives it.

    Errors: NoSuchRun where there is none of that name, or several.
    """
    if isinstance(which, Record):
        return which
    if hasattr(which, "record"):
        return get(which.record)
    if hasattr(which, "result"):  # the exception of a run that was stopped
        return get(which.result)
    root = shelf.root()
    known = shelf.names(root) if root is not None else []
    if isinstance(which, int):
        found = known[which : which + 1 or None] if -len(known) <= which < len(known) else []
    else:
        found = [name for name in known if str(which) in name] if which else []
    if len(found) == 1 and root is not None:
        return records.read(root / found[0])
    several = f": {', '.join(found[:5])}" if found else ""
    raise _nothing(f"{len(found) or 'no'} runs on record are called {which!r}{several}{_where()}")


def compare(*runs: Any, series: str = "loss") -> Comparison:
    """Draw one curve of several runs together, and say what each was asked for differently.

    ``runs`` are names or parts of them, records, results, or a list of these.

    Errors: NoSuchRun, also without any; NoSuchSeries where none of them reported ``series``;
    ConfigError for a series that is no name.
    """
    if not isinstance(series, str):
        raise ConfigError(
            f"runs.compare(series={series!r:.80})",
            "one curve of several runs is drawn, and it is asked for by its name",
            'write series="loss", and compare once more for another curve',
        )
    flat = [
        one
        for run in runs
        for one in (run if isinstance(run, (builtins.list, tuple, RunList)) else [run])
    ]
    if not flat:
        raise NoSuchRun(
            "there are no runs to compare: compare() was given none",
            "it draws the runs that are named to it, and does not choose any itself",
            'write runs.compare(*runs.list(2)), or parts of names: runs.compare("k3f", "p0q")',
        )
    return Comparison([get(one) for one in flat], series)


def _newest(limit: int) -> Iterable[Record]:
    root = shelf.root()
    num_found = 0
    for name in shelf.names(root) if root is not None else []:
        if num_found == limit:
            return
        try:
            run = records.read(root / name) if root is not None else None
        except NoSuchRun:  # cleared away by another notebook since, or not a record
            continue
        if run is not None:
            num_found += 1
            yield run


def _row(run: Record) -> tuple[str, ...]:
    story, about = run.story, run.about
    ends = story.last.get("loss")
    if not ends and run.ended in ("running", records.LOST) and run.history.get("loss"):
        ends = [run.history["loss"][0], run.history.last("loss")]
    how = run.ended
    if story.error:
        how += f": {story.error.partition(':')[0]}"
    return (
        about.id,
        _day(about.started),
        about.title,
        f"{MARKS.get(run.ended, '?')} {how}",
        f"{run.step:,}",
        " → ".join(words.number(value) for value in ends) if ends else "",
        words.duration(story.took_s) if story.took_s else "",
        _shortened(about.notebook),
    )


def _shortened(name: str) -> str:
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 9]}…{name[-8:]}"


def _day(started: float) -> str:
    today = time.strftime("%Y-%m-%d") == time.strftime("%Y-%m-%d", time.localtime(started))
    return time.strftime("today %H:%M" if today else "%Y-%m-%d %H:%M", time.localtime(started))


def _style(name: str) -> str:
    side = "right" if name in _RIGHT else "left"
    wrap = "normal" if name in _WRAPPED else "nowrap"  # gives way where the page is narrow
    return f"text-align:{side};padding:3px 14px 3px 0;white-space:{wrap}"


def _where() -> str:
    root = shelf.root()
    return "" if root is None else f" in {root}"


def _nothing(what: str) -> NoSuchRun:
    if trouble := shelf.trouble():
        return NoSuchRun(
            what,
            trouble,
            f'set os.environ["{shelf.VARIABLE}"] to a folder of yours before the launch; the '
            "launch's own result has its curves and show()",
        )
    return NoSuchRun(
        what,
        "each launch leaves a record, of which the oldest are cleared away in time",
        "look at runs.list(), and give as much of a run's name as tells it from the others",
    )

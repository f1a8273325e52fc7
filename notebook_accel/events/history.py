"""The curves of a run: points from every rank in, one mean per optimizer step out.

The mean is taken here, in the kernel, so that logging costs the ranks no collective. A step
counts once every rank that reports the series has passed it; steps that a slow pipe or an early
end left with only some of the ranks are dropped, so each number is a mean over the same ranks.

Standard library only. The cost of an event does not depend on the length of the run.
"""

from __future__ import annotations

import csv
import importlib
import os
import threading
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from notebook_accel.errors import MissingPackage, NoSuchSeries
from notebook_accel.events.model import Metrics, Returned
from notebook_accel.events.sinks import Sink

_FAR = 2**62
# A run that goes on writes in a thread of its own. One lock for all: histories are pickled, and a
# worker that is forked meanwhile must not inherit a lock that nobody will release.
_WRITING = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_WRITING.acquire,
        after_in_parent=_WRITING.release,
        after_in_child=_WRITING.release,
    )


class Series:
    """One curve: sums and counts by step, of which the first ``settled`` entries are final.

    ``revision`` changes when entries that were final have been opened again.
    """

    def __init__(self) -> None:
        self.revision = 0
        self.steps = array("q")
        self.totals = array("d")
        self.counts = array("H")
        self.settled = 0
        self._newest: dict[int, tuple[int, float]] = {}  # rank -> its newest step and value
        self._offset: dict[int, int] = {}  # rank -> steps of its earlier loops

    def add(self, rank: int, step: int, value: float) -> None:
        """Take one point; a rank that starts to count again goes on where it was."""
        newest, old_value = self._newest.get(rank, (-_FAR, 0.0))
        if step + self._offset.get(rank, 0) < newest:
            self._offset[rank] = newest  # another loop in the same function follows the last one
        step += self._offset.get(rank, 0)
        index = bisect_left(self.steps, step)
        if rank not in self._newest and index < self.settled:
            self.settled = index  # what the others said from here on was not whole yet
            self.revision += 1
        self._newest[rank] = (step, value)
        if index == len(self.steps) or self.steps[index] != step:
            self.steps.insert(index, step)
            self.totals.insert(index, value)
            self.counts.insert(index, 1)
        elif step != newest:
            self.totals[index] += value
            self.counts[index] += 1
        elif self.counts[index] == 1:  # told twice: the last word counts
            self.totals[index] = value
        else:
            self.totals[index] += value - old_value

    def settle(self, finished: set[int], at_end: bool = False) -> None:
        """Make final what all reporting ranks have passed; drop what lacks some of them.

        ``finished`` ranks returned in the ordinary way: nothing is missing after their last step.
        """
        live = [newest for rank, (newest, _) in self._newest.items() if rank not in finished]
        passed = _FAR if at_end or not live else min(live)
        while self.settled < len(self.steps) and self.steps[self.settled] <= passed:
            step = self.steps[self.settled]
            needed = sum(
                newest >= step or rank not in finished for rank, (newest, _) in self._newest.items()
            )
            if self.counts[self.settled] >= needed:
                self.settled += 1
            else:
                for column in (self.steps, self.totals, self.counts):
                    del column[self.settled]

    def whole(self) -> Series:
        """What is final, as a series of its own."""
        end, copied = self.settled, Series()
        copied.steps, copied.totals = self.steps[:end], self.totals[:end]
        copied.counts, copied.settled = self.counts[:end], end
        return copied

    def mean(self, index: int) -> float:
        """The mean over the ranks at entry ``index``."""
        return float(self.totals[index] / self.counts[index])


class History(Mapping[str, "list[float]"], Sink):
    """What a run reported: ``history["loss"]`` is the curve, one number per optimizer step.

    A mapping from series name to values. ``loss`` is noted by ``accelerator.backward`` (``loss/2``
    and so on for further call sites), other names come from ``accelerator.log``. NaN and inf stay.

    Errors: an unknown name raises NoSuchSeries (a KeyError) that lists the known ones.
    """

    def __init__(self) -> None:
        self._series: dict[str, Series] = {}
        self._finished: set[int] = set()

    @classmethod
    def of(cls, curves: Mapping[str, tuple[array[int], array[float]]]) -> History:
        """Make a history of whole curves: name -> steps in rising order, and values."""
        history = cls()
        for name, (steps, values) in curves.items():
            series = history._series[name] = Series()
            series.steps, series.totals = steps, values
            series.counts = array("H", [1]) * len(steps)
            series.settled = len(steps)
        return history

    def handle(self, event: Any) -> None:
        """Take one event of the run."""
        with _WRITING:
            if isinstance(event, Metrics):
                touched = set()
                for name, step, value in event.points:
                    self._series.setdefault(name, Series()).add(event.rank, step, value)
                    touched.add(name)
                for name in touched:
                    self._series[name].settle(self._finished)
            elif isinstance(event, Returned) and not event.stopped:
                self._finished.add(event.rank)
                for series in self._series.values():
                    series.settle(self._finished)

    def close(self) -> None:
        """The run is over: settle what is whole, drop what only some ranks reported."""
        with _WRITING:
            for series in self._series.values():
                series.settle(self._finished, at_end=True)

    def snapshot(self) -> History:
        """The same as it stands now: while a run goes on, steps and values of it fit together."""
        now = History()
        with _WRITING:
            now._series = {name: one.whole() for name, one in self._series.items()}
        return now

    def series(self, name: str) -> Series:
        """The curve ``name`` as it is stored, for drawing."""
        name = str(name)  # as ``accelerator.log`` makes its names
        if name not in self._series:
            known = ", ".join(self) or "none"
            raise NoSuchSeries(
                f"the history has no series {name!r}; it has: {known}",
                "a series appears when accelerator.backward(loss) or accelerator.log(...) ran",
                'read one of these names, or report it with accelerator.log({"'
                + name
                + '": value})',
            )
        return self._series[name]

    def __getitem__(self, name: str) -> list[float]:
        with _WRITING:
            series = self.series(name)
            return [series.mean(index) for index in range(series.settled)]

    def __iter__(self) -> Iterator[str]:
        with _WRITING:
            return iter([name for name, series in self._series.items() if series.settled])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        series = self._series.get(str(name))
        return series is not None and series.settled > 0

    def __repr__(self) -> str:
        lengths = ", ".join(f"{name}: {self._series[name].settled} steps" for name in self)
        return f"History({lengths or 'empty'})"

    def steps(self, name: str) -> list[int]:
        """The optimizer steps that belong to ``history[name]``."""
        with _WRITING:
            series = self.series(name)
            return series.steps[: series.settled].tolist()

    def last(self, name: str) -> float:
        """The newest value of ``name``; NaN while there is none."""
        with _WRITING:
            series = self._series.get(str(name))
            return series.mean(series.settled - 1) if series and series.settled else float("nan")

    def rows(self) -> list[dict[str, float | int | None]]:
        """One dict per step with all series side by side; None where a series has no value.

        A series that is itself called ``step`` is ``step (logged)`` here.
        """
        now = self.snapshot()
        columns = _columns(now)
        table: dict[int, dict[str, float | int | None]] = {}
        for name, column in zip(now, columns, strict=True):
            for step, value in zip(now.steps(name), now[name], strict=True):
                table.setdefault(step, {"step": step, **dict.fromkeys(columns)})[column] = value
        return [table[step] for step in sorted(table)]

    def to_csv(self, path: str | Path) -> None:
        """Write ``rows()`` to a CSV file; an empty field where a series has no value."""
        now = self.snapshot()
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["step", *_columns(now)])
            writer.writeheader()
            writer.writerows(now.rows())

    def to_pandas(self) -> Any:
        """``rows()`` as a pandas DataFrame with the step as its index."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise MissingPackage(
                "pandas is not installed in this environment",
                "history.to_pandas() is the only part that needs it",
                "install it with %pip install pandas, or use history.rows() or history.to_csv(...)",
            ) from None
        now = self.snapshot()
        return pandas.DataFrame(now.rows(), columns=["step", *_columns(now)]).set_index("step")


def _columns(names: Iterable[str]) -> list[str]:
    """Name the columns of series beside the one that holds the steps."""
    return ["step (logged)" if name == "step" else name for name in names]

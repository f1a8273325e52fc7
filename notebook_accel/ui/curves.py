"""Long series made short for drawing, at a cost that does not depend on their length.

A series is kept as columns of equally many entries each: mean, lowest, highest, how many were not
finite. When there are too many columns, neighbors are joined. No spike is ever lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from notebook_accel.events.history import History, Series
from notebook_accel.ui.series import is_loss, is_rate

Floats = NDArray[np.float64]
MAX_COLUMNS = 512
_LOG_FROM = 1e5  # a straight scale shows a loss as people know it; only wild ranges leave it
_FEW = 24
_LARGEST = 1e307  # what is beyond is cut off: nothing could be reckoned with it


@dataclass(frozen=True)
class Curve:
    """One series ready to draw: per column its middle step, mean, lowest and highest value.

    ``broken`` are the steps of columns with values that are not finite. A column without any
    finite value has NaN. The newest value has a column of its own, the last one.
    """

    name: str
    steps: Floats
    means: Floats
    lows: Floats
    highs: Floats
    broken: Floats
    last: float

    @property
    def is_exact(self) -> bool:
        """Whether each column is one entry of the series."""
        return bool(np.array_equal(self.lows, self.highs, equal_nan=True))

    @property
    def has_dots(self) -> bool:
        """Whether each value is to be seen as a dot; a setting holds between two of its own."""
        return len(self.steps) <= _FEW and not is_rate(self.name)

    def narrowed(self, num_columns: int) -> Curve:
        """The same in at most ``num_columns`` columns (two at least), the newest one kept."""
        size = len(self.steps) - 1
        width = -(-size // max(1, num_columns - 1))
        if width < 2:
            return self
        starts = np.arange(0, size, width)
        counts = np.diff(np.append(starts, size))
        finite = np.isfinite(self.means[:-1])
        with np.errstate(invalid="ignore", divide="ignore"):
            sums = np.add.reduceat(np.where(finite, self.means[:-1], 0.0), starts)
            means = sums / np.add.reduceat(finite, starts, dtype=np.int64)
        return Curve(
            self.name,
            np.append(np.add.reduceat(self.steps[:-1], starts) / counts, self.steps[-1]),
            np.append(means, self.means[-1]),
            np.append(np.fmin.reduceat(self.lows[:-1], starts), self.lows[-1]),
            np.append(np.fmax.reduceat(self.highs[:-1], starts), self.highs[-1]),
            self.broken,
            self.last,
        )


@dataclass(frozen=True)
class Extent:
    """From which value to which a picture shows its curves, and whether by powers of ten."""

    low: float
    high: float
    is_log: bool = False

    @staticmethod
    def of(curves: Sequence[Curve], metric: str) -> Extent | None:
        """The extent that shows ``curves`` of one number; None where none of them has any value."""
        sides = [side for one in curves for side in (one.lows, one.highs)]
        values = np.concatenate([side[np.isfinite(side)] for side in sides])
        if not len(values):
            return None
        low, high = np.clip((values.min(), values.max()), -_LARGEST, _LARGEST).tolist()
        if is_loss(metric) and 0 < _LOG_FROM * low < high:
            return Extent(low / 1.5, high * 1.5, is_log=True)
        if low >= 0 and (low < 0.4 * high or (is_rate(metric) and high > 0)):  # read against zero
            return Extent(0.0, high * 1.06)
        margin = 0.08 * (high - low) or 0.1 * abs(high) or 0.1
        return Extent(low - margin, high + margin)


class Columns:
    """The columns of one series; ``take`` what is new, then ask for the ``curve``."""

    def __init__(self) -> None:
        self._revision = 0
        self._clear()

    def _clear(self) -> None:
        self._stride = 1
        self._size = 0  # entries taken
        self._first = np.zeros(MAX_COLUMNS)
        self._last = np.zeros(MAX_COLUMNS)
        self._totals = np.zeros(MAX_COLUMNS)
        self._finite = np.zeros(MAX_COLUMNS)
        self._counts = np.zeros(MAX_COLUMNS)
        self._lows = np.full(MAX_COLUMNS, np.inf)
        self._highs = np.full(MAX_COLUMNS, -np.inf)

    def take(self, series: Series) -> None:
        """Take the entries that have become final, but for the newest, which may yet change."""
        end = max(0, series.settled - 1)
        if series.revision != self._revision or end < self._size:
            self._clear()
            self._revision = series.revision
        if end == self._size:
            return
        while -(-end // self._stride) > MAX_COLUMNS:
            self._join()
        start, self._size = self._size, end
        steps = np.array(series.steps[start:end], dtype=np.float64)
        values = np.array(series.totals[start:end]) / np.array(series.counts[start:end])
        columns = np.arange(start, end) // self._stride
        edges = np.flatnonzero(np.diff(columns, prepend=-1))
        at = columns[edges]
        finite = np.isfinite(values)
        self._first[at] = np.where(self._counts[at] > 0, self._first[at], steps[edges])
        self._last[at] = steps[np.append(edges[1:], len(steps)) - 1]
        self._totals[at] += np.add.reduceat(np.where(finite, values, 0.0), edges)
        self._finite[at] += np.add.reduceat(finite, edges, dtype=np.int64)
        self._counts[at] += np.diff(np.append(edges, len(steps)))
        lows = np.minimum.reduceat(np.where(finite, values, np.inf), edges)
        highs = np.maximum.reduceat(np.where(finite, values, -np.inf), edges)
        self._lows[at] = np.minimum(self._lows[at], lows)
        self._highs[at] = np.maximum(self._highs[at], highs)

    def _join(self) -> None:
        """Make one column of each two."""
        half = MAX_COLUMNS // 2
        self._first[:half] = self._first[::2]
        self._last[:half] = np.maximum(self._last[::2], self._last[1::2])
        for sums in (self._totals, self._finite, self._counts):
            sums[:half] = sums[::2] + sums[1::2]
            sums[half:] = 0
        self._lows[:half] = np.minimum(self._lows[::2], self._lows[1::2])
        self._highs[:half] = np.maximum(self._highs[::2], self._highs[1::2])
        self._lows[half:], self._highs[half:] = np.inf, -np.inf
        self._stride *= 2

    def curve(self, name: str, series: Series) -> Curve:
        """Give the curve, the newest entry of ``series`` included."""
        num = -(-self._size // self._stride)
        newest = float(series.mean(series.settled - 1))
        step = float(series.steps[series.settled - 1])
        finite, shown = self._finite[:num], newest if np.isfinite(newest) else np.nan
        with np.errstate(invalid="ignore", divide="ignore"):
            means = self._totals[:num] / finite
        empty = finite == 0
        steps = np.append((self._first[:num] + self._last[:num]) / 2, step)
        lows, highs = np.append(self._lows[:num], shown), np.append(self._highs[:num], shown)
        lows[:num][empty] = highs[:num][empty] = np.nan
        broken = np.append(finite < self._counts[:num], not np.isfinite(newest))
        return Curve(name, steps, np.append(means, shown), lows, highs, steps[broken], newest)


class Curves:
    """All series of a history, ready to draw; asked again and again while the run goes."""

    def __init__(self, history: History) -> None:
        self.history = history
        self._columns: dict[str, Columns] = {}

    def __getitem__(self, name: str) -> Curve:
        series = self.history.series(name)
        columns = self._columns.get(name)
        if columns is None:
            columns = self._columns[name] = Columns()
        columns.take(series)
        return columns.curve(name, series)

    @property
    def last_step(self) -> int:
        """The newest step of any series."""
        history = self.history
        return max((history.series(name).steps[-1] for name in history), default=1)

"""Long series made short: the same whatever the way in, and nothing that matters is lost."""

import math
import random

import numpy as np
import pytest

from notebook_accel.events.history import History
from notebook_accel.events.model import Metrics
from notebook_accel.ui.curves import MAX_COLUMNS, Curves, Extent


def feed(history, values, first=1, rank=0, piece=97):
    for start in range(0, len(values), piece):
        part = values[start : start + piece]
        points = [("loss", first + start + i, value) for i, value in enumerate(part)]
        history.handle(Metrics(rank, points))


@pytest.mark.parametrize("size", [1, 2, MAX_COLUMNS, MAX_COLUMNS + 1, MAX_COLUMNS + 2, 5000])
def test_asked_often_or_once_a_curve_is_the_same(size):
    random.seed(0)
    values = [random.random() for _ in range(size)]
    history = History()
    curves = Curves(history)
    for start in range(0, size, 97):
        feed(history, values[start : start + 97], start + 1)
        often = curves["loss"]
    once = Curves(history)["loss"]
    for part in ("steps", "means", "lows", "highs"):
        assert np.allclose(getattr(often, part), getattr(once, part)), part
    assert often.last == values[-1] == often.means[-1]
    assert (often.lows.min(), often.highs.max()) == (min(values), max(values))
    assert len(often.steps) <= MAX_COLUMNS + 1
    assert often.is_exact == (size <= MAX_COLUMNS + 1)


def test_the_newest_value_may_change_until_the_next_one_comes():
    history = History()
    curves = Curves(history)
    feed(history, [1.0, 2.0])
    assert curves["loss"].last == 2.0
    history.handle(Metrics(0, [("loss", 2, 5.0)]))
    assert curves["loss"].means.tolist() == [1.0, 5.0]


def test_a_rank_that_speaks_late_changes_what_was_drawn():
    history = History()
    curves = Curves(history)
    feed(history, [1.0] * 50)
    assert curves["loss"].means.tolist() == [1.0] * 50
    feed(history, [3.0] * 50, rank=1)
    assert curves["loss"].means.tolist() == [2.0] * 50


def test_values_that_are_no_numbers_are_marked_and_do_not_spoil_the_rest():
    values = [1.0] * 2000
    values[999] = math.nan
    values[1500:] = [math.inf] * 500
    history = History()
    feed(history, values)
    curve = Curves(history)["loss"]
    assert set(curve.means[np.isfinite(curve.means)]) == {1.0}
    assert np.isnan(curve.means[-1]) and curve.last == math.inf
    assert abs(curve.broken[0] - 1000) < 5 and curve.broken[1] > 1490
    assert curve.broken[-1] == 2000


def test_a_narrow_curve_keeps_the_extremes_and_the_newest_value():
    random.seed(1)
    values = [random.random() for _ in range(3000)]
    history = History()
    feed(history, values)
    narrow = Curves(history)["loss"].narrowed(50)
    assert len(narrow.steps) <= 50
    assert (narrow.lows.min(), narrow.highs.max()) == (min(values), max(values))
    assert narrow.means[-1] == values[-1]
    assert abs(narrow.means[:-1].mean() - 0.5) < 0.02


def test_the_last_step_is_that_of_the_longest_curve():
    history = History()
    curves = Curves(history)
    assert curves.last_step == 1
    feed(history, [1.0] * 7)
    history.handle(Metrics(0, [("accuracy", 12, 0.5)]))
    assert curves.last_step == 12


def extent_of(metric, *values):
    history = History()
    history.handle(Metrics(0, [(metric, step, value) for step, value in enumerate(values, 1)]))
    return Extent.of([Curves(history)[metric]], metric)


def test_a_picture_reaches_from_zero_where_that_is_how_its_number_is_read():
    assert extent_of("loss", 2.0, 0.5) == Extent(0.0, 2.0 * 1.06)
    assert extent_of("accuracy", 0.9, 0.95).low > 0.8
    assert extent_of("lr", 0.1, 0.09).low == 0.0
    assert extent_of("loss", math.nan, math.inf) is None
    assert extent_of("loss", 1e-9, 1e9).is_log and not extent_of("norm", 1e-9, 1e9).is_log


@pytest.mark.parametrize("values", [(0.0, 0.0), (5.0, 5.0), (-1e308, 1e308), (0.01, 0.01)])
@pytest.mark.parametrize("metric", ["loss", "lr"])
def test_a_picture_always_has_some_height(metric, values):
    extent = extent_of(metric, *values)
    assert extent.low < extent.high and math.isfinite(extent.high - extent.low)


def test_few_values_are_seen_as_dots_but_for_a_setting_that_holds_between_them():
    history = History()
    history.handle(Metrics(0, [(name, step, 1.0) for name in ("loss", "lr") for step in (1, 2)]))
    curves = Curves(history)
    assert (curves["loss"].has_dots, curves["lr"].has_dots) == (True, False)
    feed(history, [1.0] * 100, first=3)
    assert not curves["loss"].has_dots

"""What is sent to the page: all of it, small, and in the layout that the page reads."""

import json
import math
import shutil
import subprocess

import numpy as np
import pytest

from notebook_accel.events.controls import Controls
from notebook_accel.events.history import History
from notebook_accel.events.model import Metrics, Progress
from notebook_accel.ui import canvas, words
from notebook_accel.ui.panel import Panel


def panel_of(num_steps, num_series=1, controls=None):
    panel = Panel(History(), "run", 1, controls)
    names = ["loss", *(f"metric {number}" for number in range(1, num_series))]
    for start in range(1, num_steps + 1, 1000):
        steps = range(start, min(num_steps, start + 999) + 1)
        points = [(name, step, 1 / step) for step in steps for name in names]
        for event in (Metrics(0, points), Progress(0, steps[-1], 0, steps[-1], num_steps)):
            panel.history.handle(event)
            panel.handle(event)
    return panel


def read(state, points):
    """Read the numbers as the page does."""
    numbers = np.frombuffer(points, dtype=np.float32)
    at, series = 0, {}
    for one in state["series"]:
        parts = []
        for _ in range(2 if one["exact"] else 4):
            parts.append(numbers[at : at + one["size"]])
            at += one["size"]
        series[one["name"]] = parts
    marks = numbers[at:].reshape(3, state["marks"])
    return series, marks


def test_a_short_run_arrives_as_it_is():
    state, points = canvas.snapshot(panel_of(3))
    series, marks = read(state, points)
    steps, means = series["loss"]
    assert steps.tolist() == [1, 2, 3]
    assert means.tolist() == pytest.approx([1, 1 / 2, 1 / 3])
    assert marks[0].tolist() == [3] and marks[2].tolist() == [1]
    assert (state["epoch"], state["fraction"]) == ("epoch 0", 1.0)
    assert state["title"] == "run" and state["alarms"] == []
    json.dumps(state, allow_nan=False)


@pytest.mark.parametrize("num_series", [1, 5, 40])
def test_what_is_sent_does_not_grow_with_the_run(num_series):
    state, points = canvas.snapshot(panel_of(20_000, num_series))
    assert len(points) < 26_000
    assert len(json.dumps(state)) < 8_000
    series, _ = read(state, points)
    assert len(series) == min(num_series, canvas.MAX_SERIES)
    steps, _, _, highs = series["loss"]
    assert steps[-1] == 20_000 and highs[0] == 1.0


def test_stretches_without_numbers_are_told_by_their_ends():
    panel = panel_of(10)
    values = [(11, math.nan), (12, math.inf), (13, 1.0), (14, 1.0), (15, 1.0), (16, math.nan)]
    event = Metrics(0, [("loss", step, value) for step, value in values])
    panel.history.handle(event)
    panel.handle(event)
    state, _ = canvas.snapshot(panel)
    (loss,) = state["series"]
    assert loss["broken"] == [(11, 12), (16, 16)]
    assert (loss["said"], loss["last"]) == ("nan", None)
    assert state["alarms"] == ["loss is nan since step 11 (rank 0)"]
    json.dumps(state, allow_nan=False)


def test_numbers_too_large_for_the_page_do_no_harm(recwarn):
    panel = panel_of(3)
    panel.history.handle(Metrics(0, [("huge", 1, 1e300), ("huge", 2, 1.0)]))
    state, points = canvas.snapshot(panel)
    series, _ = read(state, points)
    assert series["huge"][1].tolist() == [math.inf, 1.0]
    assert not recwarn.list


def test_buttons_are_there_only_where_they_can_be_heard():
    def buttons(is_blocking):
        controls = Controls(lambda: None, lambda: None, is_blocking)
        panel = panel_of(3, controls=controls)
        state, _ = canvas.snapshot(panel)
        panel.close()
        return state["buttons"], canvas.snapshot(panel)[0]["buttons"]

    assert buttons(is_blocking=False) == (True, False)
    assert buttons(is_blocking=True) == (False, False)
    assert canvas.snapshot(panel_of(3))[0]["buttons"] is False


def test_a_setting_that_never_changed_is_a_number_and_no_curve():
    panel = panel_of(3)
    panel.history.handle(Metrics(0, [("lr", 1, 0.001)]))
    state, _ = canvas.snapshot(panel)
    assert [one["name"] for one in state["series"]] == ["loss"]
    assert ("lr", "0.001", "") in state["meters"]


def test_the_page_writes_a_value_as_the_words_do():
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here")
    values = [
        0.0,
        0.46,
        0.0099,
        2.71828,
        -12.5,
        999.4,
        1234.5,
        3e-5,
        0.00012345,
        0.01998,
        1e-9,
        7e7,
    ]
    script = (canvas._FRONT / "chart.js").read_text() + (
        f"console.log(JSON.stringify({values}.flatMap((v) => [said(v, false), said(v, true)])))"
    )
    done = subprocess.run([node, "-e", script], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    wanted = [words.said(name, value) for value in values for name in ("loss", "lr")]
    assert json.loads(done.stdout) == wanted


def test_the_page_s_half_is_one_module_without_errors():
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here")
    texts = [(canvas._FRONT / name).read_text() for name in ("chart.js", "panel.js")]
    done = subprocess.run(
        [node, "--input-type=module", "--check"],
        input="".join(texts),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr

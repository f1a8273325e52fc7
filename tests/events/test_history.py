"""History and rates, fed with lists of events."""

import csv
import math
import os
import pickle
import signal
import sys
import threading
import time

import pytest

from notebook_accel.errors import MissingPackage, NoSuchSeries
from notebook_accel.events.history import History
from notebook_accel.events.model import Exited, Metrics, Returned


def points(rank, *pairs, name="loss"):
    return Metrics(rank, [(name, step, value) for step, value in pairs])


def history_of(*events):
    history = History()
    for event in events:
        history.handle(event)
    return history


def test_the_curve_is_the_mean_over_ranks():
    history = history_of(points(0, (1, 2.0), (2, 1.0)), points(1, (1, 4.0), (2, 2.0)), Exited(0, 0))
    assert history["loss"] == [3.0, 1.5]
    assert history.steps("loss") == [1, 2]
    assert history.last("loss") == 1.5


def test_a_step_waits_for_every_rank_that_reports_the_series():
    history = history_of(points(0, (1, 2.0)), points(1, (1, 4.0)), points(0, (2, 9.0), (3, 9.0)))
    assert history["loss"] == [3.0]
    history.handle(points(1, (2, 1.0)))
    assert history["loss"] == [3.0, 5.0]


def test_ranks_that_speak_late_still_enter_the_mean():
    history = history_of(points(0, (1, 3.0), (2, 6.0)))
    assert history["loss"] == [3.0, 6.0], "alone until another rank reports the series"
    history.handle(points(1, (1, 6.0), (2, 0.0)))
    history.handle(points(2, (1, 0.0)))
    history.close()
    assert history["loss"] == [3.0], "step 2 lacks rank 2, so it is dropped"


def test_a_series_of_the_main_rank_alone_appears_at_once():
    history = history_of(
        points(0, (1, 2.0)),
        points(1, (1, 2.0)),
        points(0, (1, 0.75), name="accuracy"),
    )
    assert history["accuracy"] == [0.75]


def test_steps_that_a_thinned_rank_left_out_are_dropped():
    history = history_of(
        points(0, *[(step, 1.0) for step in range(1, 9)]),
        points(1, (1, 3.0), (2, 3.0), (4, 3.0), (8, 3.0)),
    )
    assert history.steps("loss") == [1, 2, 4, 8]
    assert history["loss"] == [2.0] * 4


def test_a_thinned_rank_that_is_ahead_of_a_full_one_gives_the_same_steps():
    history = history_of(
        points(0, (1, 3.0), (2, 3.0), (4, 3.0), (8, 3.0)),
        points(1, (1, 1.0)),
        points(1, *[(step, 1.0) for step in range(2, 9)]),
    )
    assert history.steps("loss") == [1, 2, 4, 8]
    assert history["loss"] == [2.0] * 4


def test_a_run_cut_short_keeps_only_steps_of_all_ranks():
    history = history_of(
        points(0, (1, 1.0), (2, 1.0), (3, 1.0)),
        points(1, (1, 3.0), (2, 3.0)),
        Exited(1, -9),
        Returned(0, 0, stopped=True),
    )
    history.close()
    assert history.steps("loss") == [1, 2]


def test_a_rank_that_returned_early_does_not_hold_the_others_back():
    history = history_of(
        points(0, (1, 1.0)), points(1, (1, 3.0)), Returned(1, 0), points(0, (2, 5.0))
    )
    assert history["loss"] == [2.0, 5.0]


def test_nan_and_infinity_are_kept():
    history = history_of(points(0, (1, 1.0), (2, math.nan), (3, math.inf), (4, -math.inf)))
    assert history["loss"][0] == 1.0
    assert math.isnan(history["loss"][1])
    assert history["loss"][2:] == [math.inf, -math.inf]


def test_a_value_told_twice_at_one_step_counts_once_with_its_last_word():
    history = history_of(points(0, (5, 0.1), (5, 0.9), name="accuracy"))
    assert history["accuracy"] == [0.9]
    both = history_of(points(0, (5, 1.0)), points(1, (5, 3.0), (5, 5.0)))
    assert both["loss"] == [3.0]


def test_what_is_told_before_the_first_step_stays_there():
    history = History()
    history.handle(Metrics(0, [("accuracy", step, float(step)) for step in (-5, -1, 0, 5)]))
    assert history.steps("accuracy") == [-5, -1, 0, 5] == history["accuracy"]


def test_three_loops_in_one_function_follow_each_other():
    fold = [(1, 3.0), (2, 2.0)]
    history = history_of(points(0, *fold), points(0, *fold), points(0, *fold))
    assert history.steps("loss") == [1, 2, 3, 4, 5, 6]
    assert history["loss"] == [3.0, 2.0] * 3


def test_it_reads_like_a_mapping():
    history = history_of(points(0, (1, 1.0)), points(0, (1, 0.5), name="accuracy"))
    assert list(history) == ["loss", "accuracy"]
    assert len(history) == 2
    assert "loss" in history
    assert "perplexity" not in history
    assert math.isnan(history.last("perplexity"))
    assert repr(history) == "History(loss: 1 steps, accuracy: 1 steps)"
    assert repr(History()) == "History(empty)"


def test_an_unknown_series_names_the_known_ones():
    history = history_of(points(0, (1, 1.0)))
    with pytest.raises(NoSuchSeries, match=r"no series 'los'; it has: loss") as caught:
        history["los"]
    assert isinstance(caught.value, KeyError)
    assert 'accelerator.log({"los": value})' in caught.value.fix


def test_rows_and_csv_put_the_series_side_by_side(tmp_path):
    history = history_of(points(0, (1, 1.0), (2, math.nan)), points(0, (2, 0.5), name="accuracy"))
    rows = history.rows()
    assert rows[0] == {"step": 1, "loss": 1.0, "accuracy": None}
    assert rows[1]["accuracy"] == 0.5
    history.to_csv(tmp_path / "curve.csv")
    with (tmp_path / "curve.csv").open() as file:
        read = list(csv.DictReader(file))
    assert read[0] == {"step": "1", "loss": "1.0", "accuracy": ""}
    assert math.isnan(float(read[1]["loss"]))


def test_a_series_called_step_leaves_the_steps_alone(tmp_path):
    history = history_of(points(0, (1, 1.0), (2, 0.5)), points(0, (2, 40.0), name="step"))
    assert history["step"] == [40.0]
    assert history.rows() == [
        {"step": 1, "loss": 1.0, "step (logged)": None},
        {"step": 2, "loss": 0.5, "step (logged)": 40.0},
    ]
    history.to_csv(tmp_path / "curve.csv")
    assert (tmp_path / "curve.csv").read_text().splitlines() == [
        "step,loss,step (logged)",
        "1,1.0,",
        "2,0.5,40.0",
    ]


def test_pandas_is_asked_for_by_name_when_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackage, match="pandas is not installed") as caught:
        history_of(points(0, (1, 1.0))).to_pandas()
    assert isinstance(caught.value, ImportError)
    assert "history.rows()" in caught.value.fix


def test_to_pandas_has_the_step_as_index():
    pytest.importorskip("pandas")
    frame = history_of(points(0, (1, 1.0), (2, 0.5))).to_pandas()
    assert frame["loss"].tolist() == [1.0, 0.5]
    assert frame.index.tolist() == [1, 2]


def test_a_history_travels_by_pickle():
    history = history_of(points(0, (1, 2.0)), points(1, (1, 4.0)))
    again = pickle.loads(pickle.dumps(history))
    assert again["loss"] == [3.0]
    again.handle(points(0, (2, 1.0)))
    again.handle(points(1, (2, 1.0)))
    assert again["loss"] == [3.0, 1.0]


def test_a_snapshot_stays_as_it_is_while_the_run_goes_on():
    history = History()
    history.handle(points(0, (1, 3.0), (2, 2.0)))
    now = history.snapshot()
    history.handle(points(0, (3, 1.0)))
    assert (now.steps("loss"), now["loss"]) == ([1, 2], [3.0, 2.0])
    assert history["loss"] == [3.0, 2.0, 1.0]
    assert pickle.loads(pickle.dumps(now)).rows() == now.rows()


@pytest.fixture
def written():
    """A history that another thread writes all the while."""
    history, is_over = History(), threading.Event()

    def write():
        step = 0
        while not is_over.is_set():
            step += 1
            for rank in (0, 1):
                history.handle(Metrics(rank, [("loss", step, 1.0), ("lr", step, 2.0)]))

    thread = threading.Thread(target=write)
    thread.start()
    yield history
    is_over.set()
    thread.join(10)
    assert not thread.is_alive()


def test_what_is_read_while_a_run_writes_fits_together(written, tmp_path):
    for _ in range(20):
        now = written.snapshot()
        for name in now:
            assert len(now.steps(name)) == len(now[name])
    written.to_csv(tmp_path / "now.csv")
    with (tmp_path / "now.csv").open(newline="") as file:
        assert all(len(row) == 3 for row in csv.reader(file))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_process_forked_while_a_run_writes_can_write_a_history_of_its_own(written):
    for _ in range(20):
        child = os.fork()
        if child == 0:
            own = History()
            own.handle(points(0, (1, 1.0)))
            os._exit(0 if own["loss"] == [1.0] else 1)
        ended = (0, 0)
        deadline = time.monotonic() + 20
        while ended == (0, 0) and time.monotonic() < deadline:
            ended = os.waitpid(child, os.WNOHANG)
            time.sleep(0.001)
        if ended == (0, 0):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        assert ended == (child, 0)


def test_a_series_is_found_by_what_it_was_logged_under():
    history = History()
    history.handle(Metrics(0, [("3", 1, 2.0)]))
    assert history[3] == history["3"] == [2.0]
    assert 3 in history and 4 not in history and history.last(3) == 2.0
    with pytest.raises(NoSuchSeries, match="no series '4'; it has: 3"):
        history[4]

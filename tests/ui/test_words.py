"""The progress line."""

import math

from notebook_accel.events.history import History
from notebook_accel.events.model import Metrics, Progress
from notebook_accel.events.rates import Rates
from notebook_accel.ui import words


def test_the_line_says_where_the_run_is_and_how_fast_it_goes():
    history, rates = History(), Rates(1)
    assert words.status(history, rates) == "waiting for the first step"
    history.handle(Metrics(0, [("loss", 20, 0.21256)]))
    rates.handle(Progress(0, 10, 3, 2, 23, 320), 10.0)
    rates.handle(Progress(0, 20, 3, 12, 23, 40320), 20.0)
    line = words.status(history, rates)
    where, pace = "epoch 3 · batch 12/23 · step 20", "4,000 samples/s · epoch ends in 11 s"
    assert line == f"{where} · loss 0.213 · {pace}"


def test_a_loader_of_unknown_length_has_no_total_and_no_time_left():
    rates = Rates(1)
    rates.handle(Progress(0, 1, 0, 5, None, 0), 1.0)
    assert words.status(History(), rates) == "epoch 0 · batch 5 · step 1"


def test_the_summary_says_how_much_was_done_and_why_it_ended():
    rates = Rates(2)
    rates.handle(Progress(0, 180, samples=6000))
    rates.handle(Progress(1, 180, samples=6000))
    assert words.summary(rates, 4.0) == "180 steps in 4.0 s · 3,000 samples/s"
    assert words.summary(rates, 4.0, "rank 1 raised ValueError").startswith(
        "rank 1 raised ValueError · 180 steps"
    )
    assert words.summary(Rates(1), 2.0) == "done in 2.0 s"


def test_the_summary_of_a_resumed_run_tells_of_its_own_work():
    rates = Rates(1)
    rates.handle(Progress(0, 144, samples=2688, from_step=60))
    assert words.summary(rates, 2.1) == "84 steps (60 to 144) in 2.1 s · 1,280 samples/s"


def test_numbers_keep_their_meaning_at_every_size():
    said = [words.number(v) for v in (0, 0.000123, 0.0521, 2.30199, 412.3, 5123.9, math.nan)]
    assert said == ["0", "0.00012", "0.052", "2.302", "412", "5,124", "nan"]
    assert words.number(-math.inf) == "-inf"
    assert [words.number(v) for v in (123456789012345, 1e15, -1e308)] == [
        "123,456,789,012,345",
        "1e+15",
        "-1e+308",
    ]


def test_rates_have_decimals_only_where_they_tell_something():
    assert [words.rate(v) for v in (0.5, 43.7, 5123.9)] == ["0.5", "44", "5,124"]


def test_durations_read_like_a_clock():
    assert [words.duration(s) for s in (0.012, 0.42, 7, 59.94, 125, 3725)] == [
        "12 ms",
        "0.4 s",
        "7 s",
        "59.9 s",
        "2:05 min",
        "1:02:05 h",
    ]


def history_of(**series):
    history = History()
    for name, values in series.items():
        history.handle(Metrics(0, [(name, step, v) for step, v in enumerate(values, 1)]))
    return history


def test_the_facts_tell_the_curve_in_words():
    text = words.facts(history_of(loss=[2.301, 0.049, 0.052], accuracy=[0.5, 0.9, 0.8]))
    assert text.splitlines() == [
        "loss 2.301 -> 0.052 over 3 steps, best 0.049 at 2",
        "accuracy 0.500 -> 0.800 over 3 steps, highest 0.900 at 2",
    ]


def test_the_facts_count_what_is_not_finite():
    text = words.facts(history_of(loss=[2.0, 1.0, math.nan, math.inf]))
    assert text == "loss 2.000 -> inf over 4 steps, best 1.000 at 2; 2 not finite, the first at 3"


def test_the_facts_of_few_points_say_where_they_are():
    history = history_of(loss=[2.0])
    assert words.facts(history) == "loss 2.000 at step 1"
    assert words.facts(history_of(loss=[2.0, 1.0])).endswith("over 2 steps, best 1.000 at 2")
    for steps, said in (
        ((0, 1, 2), "over 3 steps"),
        ((61, 62, 63), "over steps 61 to 63"),
        ((2, 4, 6), "over steps 2 to 6"),
        ((10, 20, 30), "over 3 points up to step 30"),
    ):
        history = History()
        history.handle(Metrics(0, [("accuracy", step, 0.5) for step in steps]))
        assert words.facts(history).startswith(f"accuracy 0.500 -> 0.500 {said}, highest")
    history = History()
    history.handle(Metrics(0, [("accuracy", 50, 0.5), ("accuracy", 100, 1234.5)]))
    assert words.facts(history) == (
        "accuracy 0.500 -> 1.23e+03 over 2 points up to step 100, highest 1.23e+03 at 100"
    )

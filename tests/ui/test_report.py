"""The report: one page that holds everything, escapes everything, and needs nothing else."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from notebook_accel.errors import ConfigError
from notebook_accel.events.history import History
from notebook_accel.events.model import Metrics, Output, Progress, Returned, Started
from notebook_accel.events.records import LOST, Record, Recorder
from notebook_accel.events.story import About
from notebook_accel.ui import canvas, plot
from notebook_accel.ui.curves import Curves
from notebook_accel.ui.panel import Panel
from notebook_accel.ui.report import page, write

VOID = {"meta", "line", "br", "path", "polygon"}
EVIL = "</pre><script>alert('x')</script>"


class Outline(HTMLParser):
    """Checks that a page's tags fit together; keeps its text and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "data")]
        if tag not in VOID or (tag == "path" and self.get_starttag_text()[-2:] != "/>"):  # type: ignore[index]
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words += data


def a_record(*events: Any, error: BaseException | None = None, **more: Any) -> Record:
    history = History()
    about = About("20260101-100000-aaa", more.pop("function", "main"), "2 CPU processes", "fork", 2,
                  **more)  # fmt: skip
    one = Recorder(about, history, lambda: [EVIL + "\n", ""], None)
    for event in events:
        history.handle(event)
        one.handle(event)
    history.close()
    one.close()
    one.end(error)
    return one.record


def points(name: str, *values: float) -> Metrics:
    return Metrics(0, [(name, step, value) for step, value in enumerate(values, 1)])


def test_a_report_tells_how_a_run_went() -> None:
    record = a_record(
        Started(0, 11, "cuda:0", 3),
        Progress(0, 40, 1, 10, 20, 320, 0.5),
        points("loss", *[1 / step for step in range(1, 41)]),
        points("val_loss", 0.9, 0.5),
        points("accuracy", 0.1, 0.9),
        Output(0, "stderr", "UserWarning: <odd>\nUserWarning: <odd>\n"),
        Returned(0, 1),
        config={"num_processes": 2, "mixed_precision": "bf16"},
        arguments={"lr": 0.1, "sizes": [8, 1]},
        environment={"NCCL_DEBUG": "INFO"},
    )
    seen = Outline(page(record))
    for fact in (
        "finished", "main on 2 CPU processes", "0.025", "from 1.000", "40", "320",
        "loss 1.000 → 0.025 over 40 steps", "accuracy 0.100 → 0.900", "cuda:0", "returned",
        "mixed_precisionbf16", "sizes8, 1", "NCCL_DEBUGINFO", "torch",
        "UserWarning: <odd> \N{MULTIPLICATION SIGN}2",
        "in 2 passes over the data", "optimizer step",
    ):  # fmt: skip
        assert fact in seen.words, f"{fact!r} is missing in {seen.words}"
    assert seen.tags.count("svg") == 2, "train and validation loss share one picture"


def test_a_report_needs_nothing_else() -> None:
    text = page(a_record(points("loss", 1.0, 0.5)))
    seen = Outline(text)
    assert seen.loads == []
    assert not {"script", "link", "iframe", "img"} & set(seen.tags)
    assert not re.search(r"url\(|@import|https?://", text)


def test_everything_that_people_named_is_escaped() -> None:
    record = a_record(
        Started(0, 11, EVIL, 1),
        points(EVIL, 1.0, 0.5, math.nan),
        Output(0, "stderr", f"UserWarning: {EVIL}\n"),
        error=ValueError(EVIL),
        function=EVIL,
        config={EVIL: EVIL},
        arguments={EVIL: [EVIL]},
        environment={"NCCL_X": EVIL},
        notebook=EVIL,
    )
    text = page(record)
    seen = Outline(text)
    assert "<script" not in text
    assert seen.words.count(EVIL) >= 8


def test_half_a_character_among_the_arguments_ends_no_report(tmp_path: Path) -> None:
    record = a_record(points("loss", 1.0), arguments={"name": "half \ud800"})
    assert "half ?" in write(record, tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_failed_and_a_lost_run_say_so_at_the_top() -> None:
    failed = page(a_record(points("loss", 1.0, 0.5), error=ValueError("bad rate")))
    assert '<pre class="error">ValueError: bad rate</pre>' in failed
    lost = a_record(points("loss", 1.0, 0.5))
    lost.story.ended = LOST
    words = Outline(page(lost)).words
    assert "lost with its kernel" in words and "The kernel ended at step 2 or soon after" in words


def test_a_run_that_reported_nothing_has_a_report_too() -> None:
    assert "Nothing was reported." in Outline(page(a_record())).words


def test_curves_of_every_shape_can_be_drawn() -> None:
    for values in (
        [1.0, 1.0],
        [0.0, 0.0],
        [-1.0, -2.0],
        [1e-9, 1e9],
        [math.nan, math.nan],
        [math.inf, 1.0, -math.inf],
        [1e300, -1e300],
        [5.0],
        [1e-12, 2e-12],
        list(range(5000)),
    ):
        seen = Outline(page(a_record(points("loss", *map(float, values)))))
        assert "NaN" not in seen.words and seen.tags.count("svg") == (len(values) > 1)
        heights = seen.tags.count("line") - seen.tags.count("svg")  # but for the line of steps
        assert bool(heights) == (len(values) > 1 and any(map(math.isfinite, values)))


def test_a_loss_that_was_never_a_number_has_no_best() -> None:
    seen = Outline(page(a_record(points("loss", math.nan, math.nan))))
    assert "from nan" in seen.words and "best" not in seen.words


def test_a_number_that_is_no_curve_is_told_without_room_for_a_picture() -> None:
    text = page(a_record(points("loss", 2.0, 1.0), points("lr", 0.01), points("accuracy", 0.5)))
    assert "lr 0.01" in text and "accuracy 0.500 at step 1" in text
    assert text.count("<svg") == text.count('<div class="wide"><svg') == 1
    assert '<div class="wide"></div>' not in text


def test_all_charts_of_a_report_have_the_same_steps_below_them() -> None:
    late = Metrics(0, [("accuracy", 10, 0.5), ("accuracy", 20, 0.9)])
    text = page(a_record(points("loss", *[1 / step for step in range(1, 41)]), late))
    drawn = re.findall(r"<svg.*?</svg>", text)
    steps = [re.findall(r'text-anchor="middle">([\d,]+)<', one) for one in drawn]
    assert len(drawn) == 2 and steps[0] == steps[1] and steps[0][-1] == "40"


def test_steps_that_only_logs_count_are_called_so() -> None:
    record = a_record(Started(0, 11, "cpu", 1), points("accuracy", 0.1, 0.2, 0.3))
    words = Outline(page(record)).words
    assert "steps logged3" in words and "optimizer steps" not in words


def test_a_resumed_run_tells_how_much_of_it_was_its_own_work() -> None:
    record = a_record(Started(0, 11, "cpu", 1), Progress(0, 144, 5, 9, 20, 2688, from_step=60))
    words = Outline(page(record)).words
    assert "optimizer steps14484 in this run, from step 60" in words and "2,688" in words


@pytest.mark.parametrize("rate", [0.01, 0.00012345, 3e-5])
def test_a_learning_rate_reads_the_same_in_every_picture(rate: float) -> None:
    rates = points("lr", 1.0, rate)
    history = a_record(rates).history
    card = plot.Card("run")
    card.png(Curves(history))
    in_png = card._panels[0].texts[0].get_text().splitlines()[1]
    panel = Panel(history, "run", 1)
    in_canvas = canvas.snapshot(panel)[0]["series"][0]["said"]
    svg = re.findall(r"<svg.*?</svg>", page(a_record(rates)))[0]
    assert in_png == in_canvas == f"{rate:.3g}" and f">{in_png}</text>" in svg


def test_no_coordinate_of_a_curve_is_lost() -> None:
    text = page(a_record(points("loss", 1.0, math.nan, 3.0, math.inf, 2.0)))
    drawn = re.findall(r' d="([^"]*)"', text)
    assert drawn and not any("nan" in one or "inf" in one for one in drawn)
    assert text.count("is not finite at step") == 2


def test_many_series_of_one_number_are_bounded_and_said_so() -> None:
    many = [points("loss" if n == 0 else f"loss/{n + 1}", 2.0, 1.0 + n) for n in range(9)]
    assert "+3 more" in Outline(page(a_record(*many))).words


def test_a_report_stays_small_however_long_the_run_was() -> None:
    short = len(page(a_record(points("loss", *[step % 7 for step in range(1000)]))))
    long = len(page(a_record(points("loss", *[step % 7 for step in range(100_000)]))))
    assert long < 1.5 * short < 100_000


def test_writing_gives_the_path(tmp_path: Path) -> None:
    path = write(a_record(), tmp_path / "report.html")
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert a_record().report(str(path)) == path


def test_a_place_that_takes_no_file_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        a_record().report(tmp_path / "nope" / "x.html")
    assert caught.value.what == f"the report cannot be written to {tmp_path}/nope/x.html"
    assert caught.value.why == "the system says: No such file or directory"
    assert "a folder that is there" in caught.value.fix
    with pytest.raises(ConfigError, match="Is a directory"):
        a_record().report(tmp_path)

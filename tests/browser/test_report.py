"""The report of a run in a real browser: it paints, it fits, it asks the network for nothing."""

from __future__ import annotations

import math

import pytest

from notebook_accel.events.history import History
from notebook_accel.events.model import Metrics, Output, Progress, Returned, Started
from notebook_accel.events.records import Recorder
from notebook_accel.events.story import About

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(120)]


@pytest.fixture
def report(tmp_path):
    """A report of an eventful run of eight ranks."""
    history = History()
    about = About(
        "20260101-100000-aaa",
        "train",
        "8 CUDA processes",
        "forkserver",
        8,
        config={"num_processes": 8, "mixed_precision": "bf16", "seed": 5},
        arguments={"lr": 3e-4, "data": "<Dataset (50000, 3, 32, 32)>", "note": "x" * 180},
        environment={"NCCL_DEBUG": "WARN", "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"},
        notebook="a long name of a notebook.ipynb",
    )
    one = Recorder(about, history, lambda: ["a line of output\n" * 300] * 8, None)

    def wave(step):
        return 2 / math.sqrt(step) + 0.2 * math.sin(step)

    events = [
        *(Started(rank, 100 + rank, f"cuda:{rank}", 4) for rank in range(8)),
        Metrics(0, [("loss", step, wave(step)) for step in range(1, 3001)]),
        Metrics(0, [("loss", 3001, math.nan)]),
        Metrics(0, [("val_loss", step, 0.1 + wave(step)) for step in range(300, 3001, 300)]),
        Metrics(0, [("accuracy", step, 1 - 1 / step) for step in range(300, 3001, 300)]),
        Metrics(0, [("lr", step, 3e-4 * (1 - step / 3001)) for step in range(1, 3001)]),
        *(Progress(rank, 3001, 2, 5, 1000, 96_032, 4.5) for rank in range(8)),
        *(Output(rank, "stderr", "UserWarning: rather long " + "y" * 200) for rank in range(8)),
        *(Returned(rank, 9) for rank in range(7)),
    ]
    for event in events:
        history.handle(event)
        one.handle(event)
    history.close()
    one.close()
    one.end(ValueError("the loss is not finite\n  why: lr is too high"))
    return one.record.report(tmp_path / "report.html")


def test_a_report_paints_fits_and_prints(browser, theme, report, shots, tmp_path):
    context = browser.new_context(color_scheme=theme, viewport={"width": 1000, "height": 900})
    page = context.new_page()
    asked, complaints = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(report.as_uri())
    assert page.locator("h1").inner_text() == "train on 8 CUDA processes"
    assert page.locator("svg").count() == 3
    page.locator("summary").first.click()
    page.locator("summary").first.click()
    for width in (1000, 400):
        page.set_viewport_size({"width": width, "height": 900})
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, f"the page is {wide} pixels wide in a window of {width}"
        page.screenshot(path=str(shots(f"report_{width}")), full_page=True)
    paper, ink = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    assert contrast(paper, ink) > 7
    for name in page.locator("svg .name").all():
        fill = name.evaluate("one => getComputedStyle(one).fill")
        assert contrast(paper, fill) > 4.5, f"{name.inner_html()} in {fill} on {paper}"
    printed = tmp_path / "report.pdf"
    page.pdf(path=str(printed), format="A4")
    assert printed.stat().st_size > 10_000
    assert asked == [report.as_uri()] and complaints == []
    context.close()


def contrast(one, other):
    """The contrast of two colors as WCAG 2 has it, from 1 to 21."""

    def light(color):
        parts = [int(part) / 255 for part in color.strip("rgb()").split(",")[:3]]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(weight * p for weight, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)

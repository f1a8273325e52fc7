"""The panel without a widget: static HTML and text."""

from notebook_accel.events.history import History
from notebook_accel.events.model import Metrics, Progress, Returned
from notebook_accel.ui import markup, words
from notebook_accel.ui.panel import Panel


def panel_of(num_ranks, *points, name="loss"):
    panel = Panel(History(), "run", num_ranks)
    for rank in range(num_ranks):
        for event in (Metrics(rank, list(points)), Progress(rank, 2, 0, 1, 4)):
            panel.history.handle(event)
            panel.handle(event)
    return panel


def test_a_running_panel_says_in_html_and_text_where_it_is():
    panel = panel_of(2, ("loss", 1, 2.0), ("loss", 2, float("nan")))
    page, text = markup.running(panel), markup.as_text(panel)
    assert 'aria-label="25% of epoch 0"' in page and "width:25%" in page
    for words_ in ("epoch 0", "batch 1/4", "loss is nan since step 2", "rank 1: training"):
        assert words_ in page and words_ in text


def test_names_from_outside_are_text_and_no_markup():
    panel = panel_of(1, ("<img src=x onerror=y>loss", 1, float("nan")))
    assert "<img" not in markup.running(panel)
    facts = words.facts(panel.history)
    assert "<img" in facts and "<img" not in markup.ended(panel, facts)


def test_many_ranks_and_many_curves_do_not_fill_the_page():
    points = [(f"metric {n}", step, 1.0) for n in range(30) for step in (1, 2)]
    panel = panel_of(40, *points)
    assert f"and {40 - markup.MAX_ROWS} more ranks" in markup.running(panel)
    panel.close()
    facts = words.facts(panel.history)
    page = markup.ended(panel, facts)
    visible, _, folded = page.partition("<details>")
    assert "metric 7 " in visible and "metric 8 " in folded and "22 more curves" in folded
    assert markup.as_text(panel, facts).count("metric") == 30


def test_a_run_of_one_rank_ends_without_a_line_for_it():
    panel = panel_of(1, ("loss", 1, 2.0), ("loss", 2, 1.0))
    panel.handle(Returned(0, 0))
    panel.close()
    assert "rank 0" not in markup.as_text(panel, "facts")
    assert "rank 0" not in markup.ended(panel, "facts")

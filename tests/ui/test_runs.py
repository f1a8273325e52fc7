"""``notebook_accel.runs``: find runs again, list and compare them, whoever made them."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import pytest

from notebook_accel import runs
from notebook_accel.errors import ConfigError, NoSuchRun, NoSuchSeries, RunInterrupted
from notebook_accel.events import shelf
from notebook_accel.events.history import History
from notebook_accel.events.model import Metrics
from notebook_accel.events.records import Record, Recorder
from notebook_accel.events.story import About


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NOTEBOOK_ACCEL_RUNS", str(tmp_path))
    return tmp_path


def recorder(name: str, *losses: float, series: str = "loss", **more: object) -> Recorder:
    """A run on record that goes on; its kernel is this process."""
    history = History()
    about = About(name, "main", "2 CPU processes", "fork", 1, **more)  # type: ignore[arg-type]
    one = Recorder(about, history, list, shelf.root())
    event = Metrics(0, [(series, step, loss) for step, loss in enumerate(losses, 1)])
    history.handle(event)
    one.handle(event)
    one.tick()
    return one


def recorded(name: str, *losses: float, error: Exception | None = None, **more: object) -> Record:
    one = recorder(name, *losses, **more)  # type: ignore[arg-type]
    one.close()
    one.end(error)
    return one.record


def test_runs_are_listed_newest_first_with_how_they_ended() -> None:
    recorded("20260101-100000-aaa", 3.0, 1.0, notebook="first.ipynb")
    recorded("20260102-100000-bbb", error=ValueError("too <b>big</b>"))
    going = recorder("20260103-100000-ccc", 2.0, 1.5)
    listed = runs.list()
    assert [run.id[-3:] for run in listed] == ["ccc", "bbb", "aaa"]
    head, *rows = repr(listed).splitlines()
    assert re.split(r"  +", head) == [
        "run", "started", "what", "how it ended", "steps", "loss", "took", "notebook",
    ]  # fmt: skip
    assert "▶ running" in rows[0] and "2.000 → 1.500" in rows[0]
    assert "✗ failed: ValueError" in rows[1]
    assert "✓ finished" in rows[2] and "3.000 → 1.000" in rows[2] and "first.ipynb" in rows[2]
    assert len(runs.list(limit=2)) == 2
    assert isinstance(listed[:2], runs.RunList) and listed[-1].id.endswith("aaa")
    going.end()


def test_the_table_of_a_notebook_escapes_what_people_named_things() -> None:
    recorded("20260101-100000-aaa", 3.0, notebook="<script>alert(1)</script>.ipynb")
    table = runs.list()._repr_html_()
    assert "<script>" not in table and "&lt;script&gt;" in table
    assert re.findall(r"<th[ >]", table).__len__() == 8


def test_a_table_wider_than_its_cell_wraps_its_words_and_scrolls() -> None:
    recorded("20260101-100000-aaa", 3.0)
    table = runs.list()._repr_html_()
    assert table.startswith('<div style="max-width:100%;overflow-x:auto"><table ')
    assert table.endswith("</table></div>")
    wrapped = re.findall(r'<th style="[^"]*white-space:normal">([^<]*)', table)
    assert wrapped == ["what", "how it ended", "notebook"]


def test_an_empty_shelf_says_where_it_looked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert repr(runs.list()) == f"no runs on record in {root}"
    with pytest.raises(NoSuchRun, match="nothing is on record in"):
        runs.last()


@pytest.mark.parametrize(
    ("folder", "why"),
    [
        ("off", "NOTEBOOK_ACCEL_RUNS is off, so no run is recorded"),
        ("{root}/file/runs", "{root}/file is no folder, so no run can be recorded in {root}/file/"),
        ("~nobody-has-this-name/runs", "nobody's home is known for ~nobody-has-this-name/runs"),
    ],
)
def test_where_nothing_can_be_recorded_the_variable_is_the_cure(
    root: Path, monkeypatch: pytest.MonkeyPatch, folder: str, why: str
) -> None:
    (root / "file").write_text("")
    monkeypatch.setenv("NOTEBOOK_ACCEL_RUNS", folder.format(root=root))
    why = why.format(root=root)
    assert repr(runs.list()).startswith(f"no runs on record: {why}")
    for ask in (runs.last, lambda: runs.get("k3f"), lambda: runs.get(0)):
        with pytest.raises(NoSuchRun) as caught:
            ask()
        assert caught.value.why.startswith(why)
        assert caught.value.fix.startswith('set os.environ["NOTEBOOK_ACCEL_RUNS"] to a folder')


@pytest.mark.parametrize("limit", [-3, 0, "x", True, 2.0, None])
def test_a_list_is_of_so_many_runs(limit: object) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"runs.list({limit!r})")) as caught:
        runs.list(limit)  # type: ignore[arg-type]
    assert caught.value.why == "it lists so many runs, the newest first"
    assert caught.value.fix.startswith("write runs.list(5)")


def test_what_is_no_record_is_passed_over(root: Path) -> None:
    recorded("20260101-100000-aaa", 3.0)
    (root / "20260109-100000-zzz").mkdir()
    assert [run.id for run in runs.list()] == ["20260101-100000-aaa"]
    assert runs.last().id == "20260101-100000-aaa"


def test_a_run_is_found_by_a_part_of_its_name_by_its_place_and_by_what_carries_it() -> None:
    first, second = recorded("20260101-100000-aaa", 1.0), recorded("20260102-100000-abb", 2.0)
    assert runs.get("aaa").id == first.id and runs.get(second.id).id == second.id
    assert runs.get(0).id == second.id and runs.get(-1).id == first.id
    assert runs.get(first) is first

    class Result:
        record = first

    assert runs.get(Result()) is first
    assert runs.get(RunInterrupted("stopped", Result())) is first


@pytest.mark.parametrize(
    ("which", "said"),
    [
        ("xyz", "no runs on record are called 'xyz'"),
        ("20260", "2 runs on record are called '20260': 20260102-100000-abb, 20260101"),
        ("", "no runs on record are called ''"),
        (7, "no runs on record are called 7"),
    ],
)
def test_a_name_that_tells_no_single_run_is_refused(which: object, said: str) -> None:
    recorded("20260101-100000-aaa", 1.0)
    recorded("20260102-100000-abb", 2.0)
    with pytest.raises(NoSuchRun, match=re.escape(said)):
        runs.get(which)


def test_a_record_shows_itself_again(capsys: pytest.CaptureFixture[str]) -> None:
    recorded("20260101-100000-aaa", 3.0, 1.0)
    runs.last().show()
    assert "main on 2 CPU processes, finished\nloss 3.000 -> 1.000" in capsys.readouterr().out


# ── comparing ─────────────────────────────────────────────────────────────────────────────────


def test_runs_are_compared_by_one_curve_and_by_what_was_asked_differently() -> None:
    for name, rate in (("20260101-100000-aaa", 0.1), ("20260102-100000-bbb", 0.01)):
        recorded(name, 3.0, 1.0, arguments={"lr": rate, "steps": 2}, config={"num_processes": 2})
    compared = runs.compare("aaa", "bbb")
    lines = repr(compared).splitlines()
    assert lines[0] == "loss of 2 runs"
    assert lines[1] == "  20260101-100000-aaa  finished · 3.000 -> 1.000 at step 2 · lr=0.1"
    assert lines[2].endswith("lr=0.01")
    assert compared.png().startswith(b"\x89PNG")
    assert repr(runs.compare(runs.list())).startswith("loss of 2 runs")


def test_a_run_without_the_curve_is_named_and_not_drawn() -> None:
    recorded("20260101-100000-aaa", 1.0)
    recorded("20260102-100000-bbb", 1.0, series="reward")
    assert "bbb  finished · no loss" in repr(runs.compare("aaa", "bbb"))
    with pytest.raises(NoSuchSeries, match="none of these 2 runs has a series 'accuracy'"):
        runs.compare("aaa", "bbb", series="accuracy")
    recorded("20260103-100000-ccc")
    with pytest.raises(NoSuchSeries, match="none of these 1 run has a series 'loss'") as caught:
        runs.compare("ccc")
    assert caught.value.why == "nothing was reported in them"
    assert caught.value.fix.startswith("call accelerator.backward(loss)")
    with pytest.raises(ConfigError, match=re.escape("runs.compare(series=['loss'])")) as wrong:
        runs.compare("aaa", series=["loss"])  # type: ignore[arg-type]
    assert wrong.value.fix.startswith('write series="loss"')


def test_the_picture_says_which_runs_are_not_in_it() -> None:
    recorded("20260101-100000-aaa", 1.0)
    recorded("20260102-100000-bbb", 1.0, series="reward")
    assert runs.compare("aaa").title == "loss of 1 run"
    assert runs.compare("aaa", "bbb").title == "loss of 1 run; no loss in bbb"
    for number in range(4):
        recorded(f"20260103-100000-r{number}", 1.0, series="reward")
    assert runs.compare(runs.list()).title == "loss of 1 run; no loss in 5 runs"
    assert runs.compare(runs.list()).png().startswith(b"\x89PNG")


def test_comparing_nothing_says_what_to_write() -> None:
    for nothing in ((), (runs.list(),)):
        with pytest.raises(NoSuchRun, match="there are no runs to compare") as caught:
            runs.compare(*nothing)
        assert caught.value.fix.startswith("write runs.compare(*runs.list(2))")


def test_a_record_cannot_be_exported_and_says_what_can() -> None:
    recorded("20260101-100000-aaa", 1.0)
    with pytest.raises(ConfigError, match="the record 20260101-100000-aaa cannot be exp") as caught:
        runs.last().export_script("train.py")
    assert "not its code" in caught.value.why
    assert caught.value.fix.startswith("call export_script on what the launch gave")


def test_more_runs_than_a_picture_holds_and_values_that_are_not_finite_are_drawn() -> None:
    for number in range(12):
        recorded(f"2026010{number % 10}-100000-{number:03}", 1.0, math.nan, math.inf, 0.5)
    recorded("20260120-100000-nan", math.nan)
    assert runs.compare(runs.list()).png().startswith(b"\x89PNG")
    assert runs.compare("nan").png().startswith(b"\x89PNG")


def test_in_a_notebook_a_comparison_is_a_picture_with_its_facts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded("20260101-100000-aaa", 3.0, 1.0)
    assert set(runs.compare("aaa")._repr_mimebundle_()) == {"text/plain"}, "no front end here"
    monkeypatch.setattr(sys.modules["notebook_accel.ui.place"], "has_kernel", lambda: True)
    data, metadata = runs.compare("aaa")._repr_mimebundle_()
    assert set(data) == {"image/png", "text/plain"}
    assert metadata["image/png"]["width"] == 720

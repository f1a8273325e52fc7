"""The record of a run: written while it goes, whole after any end, bounded, never in the way."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from notebook_accel.errors import NoSuchRun, RunInterrupted
from notebook_accel.events import records, shelf
from notebook_accel.events.discretion import HIDDEN, hider
from notebook_accel.events.history import History
from notebook_accel.events.logs import Logs
from notebook_accel.events.model import (
    Exited,
    Failed,
    Metrics,
    Output,
    Progress,
    Returned,
    Started,
    Task,
)
from notebook_accel.events.records import LOST, Record, Recorder, read
from notebook_accel.events.story import About


class Recorded:
    """A run of two ranks under record, as the launcher does it."""

    def __init__(self, root: Path | None, num_ranks: int = 2, **more: Any) -> None:
        self.history = History()
        about = About(shelf.new_id(), "main", "2 CPU processes", "fork", num_ranks, **more)
        self.recorder = Recorder(about, self.history, list, root, hider())
        self.record = self.recorder.record
        self.due()

    def due(self) -> None:
        self.recorder.FLUSH_INTERVAL_S = self.recorder.STORY_INTERVAL_S = 0.0

    def take(self, *events: Any) -> None:
        for event in events:
            self.history.handle(event)
            self.recorder.handle(event)
        self.recorder.tick()

    def steps(self, first: int, last: int, ranks: tuple[int, ...] = (0, 1)) -> None:
        for rank in ranks:
            points = [("loss", step, step + rank) for step in range(first, last + 1)]
            self.take(Metrics(rank, points))

    def end(self, error: BaseException | None = None, stopped: bool = False) -> Record:
        self.history.close()
        self.recorder.close()
        self.recorder.end(error, stopped)
        assert self.record.path is not None
        return read(self.record.path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def test_a_finished_run_is_read_back_as_it_was(root: Path) -> None:
    run = Recorded(root, config={"num_processes": 2}, arguments={"lr": 0.1})
    run.take(Started(0, 11, "cpu", 1), Started(1, 12, "cpu", 1))
    run.steps(1, 50)
    run.take(Progress(0, 50, 1, 10, 40, 200), Output(1, "stdout", "hello\n"))
    run.take(Returned(0, 8), Returned(1, 8), Exited(0, 0), Exited(1, 0))
    kept = run.end()
    assert (kept.ended, kept.id, kept.step) == ("finished", run.record.id, 50)
    assert kept.config == {"num_processes": 2} and kept.about.arguments == {"lr": 0.1}
    assert kept.history["loss"] == [step + 0.5 for step in range(1, 51)] == run.history["loss"]
    assert kept.history.steps("loss") == list(range(1, 51))
    assert kept.logs(1) == kept.logs[1] == "hello\n" and kept.logs(0) == ""
    assert [rank.ended for rank in kept.story.ranks] == ["returned", "returned"]
    assert kept.story.ranks[0].samples == 200
    assert "finished" in repr(kept) and "loss 1.5 -> 50.5" in repr(kept)


def test_numbers_that_are_not_finite_stay(root: Path) -> None:
    run = Recorded(root, 1)
    run.take(Metrics(0, [("loss", 1, math.inf), ("loss", 2, math.nan)]))
    kept = run.end()
    assert kept.history["loss"][0] == math.inf and math.isnan(kept.history["loss"][1])


def test_a_run_that_goes_on_can_be_read_as_far_as_it_is(root: Path) -> None:
    run = Recorded(root)
    run.steps(1, 10)
    assert run.record.path is not None
    kept = read(run.record.path)
    assert kept.ended == run.record.ended == "running"
    assert kept.history["loss"] == [step + 0.5 for step in range(1, 11)]
    run.end()


def test_failures_and_interrupts_are_on_record_with_what_the_person_was_told(root: Path) -> None:
    run = Recorded(root)
    run.take(Failed(1, "ValueError", "bad rate", [], ""), Exited(0, -9, by_us=True))
    kept = run.end(ValueError("bad rate"))
    assert (kept.ended, kept.story.error) == ("failed", "ValueError: bad rate")
    assert kept.story.ranks[1].ended == "raised ValueError: bad rate"
    assert kept.story.ranks[0].ended == "ended by the launcher"
    assert Recorded(root).end(RunInterrupted("stopped at step 3")).ended == "stopped"
    assert Recorded(root).end(None, stopped=True).ended == "stopped"
    killed = Recorded(root)
    killed.take(Exited(0, -11), Exited(1, 3))
    ends = [rank.ended for rank in killed.end(RuntimeError()).story.ranks]
    assert ends == ["killed by SIGSEGV", "left with exit code 3"]


def test_ranks_of_other_machines_are_taken_in_as_they_come(root: Path) -> None:
    run = Recorded(root)
    run.take(Started(3, 14, "cuda:1", 2), Output(3, "stdout", "over here\n"), Returned(3, 1))
    kept = run.end()
    assert [rank.ended for rank in kept.story.ranks] == ["", "", "", "returned"]
    assert kept.logs(3) == "over here\n"


def test_warnings_are_counted_over_ranks_and_long_tasks_timed(root: Path) -> None:
    run = Recorded(root)
    for rank in (0, 1):
        run.take(Output(rank, "stderr", "a.py:3: UserWarning: odd\n  warn()\n"))
    run.take(Task(0, "saving checkpoint", 0, 10), Task(0, "saving checkpoint", 10, 10))
    kept = run.end()
    assert kept.story.warnings == {"a.py:3: UserWarning: odd": 2}
    assert list(kept.story.tasks) == ["saving checkpoint"]


def test_no_file_of_a_record_holds_a_secret(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "swordfish-swordfish")
    run = Recorded(root)
    text = "logging in with swordfish-swordfish\n"
    run.take(Output(0, "stdout", text), Output(0, "stderr", f"KeyWarning: {text}"))
    run.take(Failed(1, "KeyError", text, [], ""))
    kept = run.end(KeyError(text))
    assert kept.path is not None
    written = {path.name: path.read_bytes() for path in kept.path.iterdir()}
    assert {"record.json", "rank0.log"} <= written.keys()
    assert [name for name, data in written.items() if b"swordfish" in data] == []
    assert HIDDEN in kept.logs(0) and HIDDEN in kept.story.error


def test_a_killed_process_leaves_all_but_the_last_moment(root: Path) -> None:
    code = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from tests.events.test_records import Recorded\n"
        f"run = Recorded(Path({str(root)!r}))\n"
        "run.steps(1, 30)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60, cwd=Path(__file__).parents[2])
    [name] = shelf.names(root)
    kept = read(root / name)
    assert kept.ended == LOST and kept.step == 30
    assert kept.history["loss"] == [step + 0.5 for step in range(1, 31)]


def test_points_cut_off_by_a_kill_are_left_out(root: Path) -> None:
    run = Recorded(root, 1)
    run.steps(1, 5, (0,))
    run.steps(6, 9, (0,))
    assert run.record.path is not None
    points = run.record.path / "points.bin"
    points.write_bytes(points.read_bytes()[:-7])
    assert read(run.record.path).history["loss"] == [1, 2, 3, 4, 5]
    run.end()


def test_half_a_character_in_a_name_does_not_end_the_record(root: Path) -> None:
    run = Recorded(root, 1)
    run.take(Metrics(0, [("a\udc80", 1, 2.0)]))
    assert run.end().history["a?"] == [2.0]


def test_long_runs_are_thinned_and_keep_their_end(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MAX_POINT_BYTES", 8000)
    run = Recorded(root)
    for first in range(1, 4000, 20):
        run.steps(first, first + 19)
    assert run.record.path is not None
    points = run.record.path / "points.bin"
    assert points.stat().st_size <= 8000
    partial = read(run.record.path).history
    assert partial.steps("loss") == list(range(32, 4001, 32))
    assert partial["loss"] == [step + 0.5 for step in partial.steps("loss")]
    kept = run.end()
    assert points.stat().st_size <= 8000
    assert kept.history.steps("loss") == list(range(16, 4001, 16))


def test_logs_are_bounded_and_keep_the_newest_lines(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MAX_LOG_BYTES", 1000)
    run = Recorded(root)
    for number in range(200):
        run.take(Output(0, "stdout", f"line {number} ä\n"))
    text = run.end().logs(0)
    assert len(text.encode()) < 1100
    assert text.startswith("... (the lines before were left out)\nline ")
    assert text.endswith("line 199 ä\n")


# ── the disk ──────────────────────────────────────────────────────────────────────────────────


def test_a_disk_that_takes_nothing_is_told_once_and_fails_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    for _ in range(2):
        run = Recorded(in_the_way / "runs")
        run.steps(1, 3)
        run.recorder.close()
        run.recorder.end()
        assert run.record.path is None and run.record.ended == "finished"
    said = capsys.readouterr().err
    assert said.count("runs are not recorded: Not a directory") == 1
    assert 'The run is not affected. NOTEBOOK_ACCEL_RUNS names another folder, or "off".' in said


def test_a_disk_that_fills_up_ends_the_record_not_the_run(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Recorded(root)
    run.steps(1, 3)
    path = run.record.path
    assert path is not None
    (path / "points.bin").unlink()
    (path / "points.bin").symlink_to("/dev/full")
    run.steps(4, 6)
    run.steps(7, 9)
    run.recorder.close()
    run.recorder.end()
    assert run.history["loss"] == [step + 0.5 for step in range(1, 10)]
    assert capsys.readouterr().err.count("the record of this run ends here: No space left") == 1
    assert not shelf.is_running(path)


def test_a_place_that_was_left_is_not_left_again(root: Path) -> None:
    place = shelf.take_place(root, "run")
    place.leave()
    others = os.open(os.devnull, os.O_RDONLY)
    assert others == place.lock, "the system gives the number to the next one"
    place.leave()
    os.close(others)  # it is still there


def test_records_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTEBOOK_ACCEL_RUNS", "off")
    assert shelf.root() is None
    run = Recorded(shelf.root())
    run.steps(1, 3)
    run.recorder.close()
    run.recorder.end()
    assert run.record.path is None
    assert run.record.history["loss"] == [1.5, 2.5, 3.5] and run.record.ended == "finished"


def test_without_the_variable_records_lie_in_the_persons_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NOTEBOOK_ACCEL_RUNS")
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    if sys.platform == "linux":
        assert shelf.root() == Path("/somewhere/notebook_accel/runs")
    monkeypatch.setenv("NOTEBOOK_ACCEL_RUNS", "~/elsewhere")
    assert shelf.root() == Path.home() / "elsewhere"
    monkeypatch.setenv("NOTEBOOK_ACCEL_RUNS", "~nobody-of-this-name/runs")
    assert shelf.root() is None
    monkeypatch.setenv("NOTEBOOK_ACCEL_RUNS", "here")
    assert shelf.root() == Path.cwd() / "here", "it holds when the kernel changes its directory"


def test_nobody_else_can_look_into_records(root: Path) -> None:
    kept = Recorded(root).end()
    assert kept.path is not None
    assert kept.path.stat().st_mode & 0o077 == 0 and root.stat().st_mode & 0o077 == 0


# ── retention ─────────────────────────────────────────────────────────────────────────────────


def finished(root: Path, name: str, num_bytes: int = 0) -> Path:
    place = shelf.take_place(root, name)
    (place.path / "record.json").write_bytes(b"x" * num_bytes)
    place.leave()
    return place.path


def test_the_oldest_runs_go_when_there_are_too_many(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "MAX_RUNS", 3)
    for number in range(6):
        finished(root, f"run{number}")
    assert shelf.names(root) == ["run5", "run4", "run3"]
    assert list(root.glob(".*")) == []


def test_the_oldest_runs_go_when_they_take_too_much_and_the_newest_stays(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "MAX_BYTES", 1000)
    for number in range(4):
        finished(root, f"run{number}", 400)
    shelf.make_room(root)
    assert shelf.names(root) == ["run3", "run2"]
    finished(root, "run9", 5000)
    shelf.make_room(root)
    assert shelf.names(root) == ["run9"]


def test_a_running_run_is_never_cleared_away_here_or_in_another_process(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = shelf.take_place(root, "a-here")
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom notebook_accel.events import shelf\n"
        f"shelf.take_place(Path({str(root)!r}), 'b-there')\n"
        "print('ready', flush=True)\nsys.stdin.read()\n"
    )
    there = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert there.stdout is not None and there.stdout.readline() == "ready\n"
    finished(root, "c-done")
    monkeypatch.setattr(shelf, "MAX_RUNS", 1)
    try:
        finished(root, "d-newest")
        shelf.make_room(root)
        assert shelf.names(root) == ["d-newest", "b-there", "a-here"]
        assert shelf.is_running(root / "a-here") and shelf.is_running(root / "b-there")
    finally:
        here.leave()
        there.kill()
        there.communicate(timeout=10)
    shelf.make_room(root)
    assert shelf.names(root) == ["d-newest"]


def test_looking_does_not_take_a_running_runs_lock_away(root: Path) -> None:
    place = shelf.take_place(root, "run")
    assert shelf.is_running(place.path)
    code = (
        "from pathlib import Path\nfrom notebook_accel.events import shelf\n"
        f"print(shelf.is_running(Path({str(place.path)!r})))"
    )
    for _ in range(2):
        seen = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
        )
        assert seen.stdout == "True\n", seen.stderr
    place.leave()
    assert not shelf.is_running(place.path)


def test_names_are_in_the_order_of_the_runs() -> None:
    made = []
    for _ in range(50):
        made.append(shelf.new_id())
        time.sleep(0.0005)
    assert made == sorted(set(made))


def test_several_processes_clear_one_shelf_at_once(root: Path) -> None:
    for number in range(30):
        finished(root, f"run{number:02d}")
    code = (
        "from pathlib import Path\nfrom notebook_accel.events import shelf\n"
        f"shelf.MAX_RUNS = 5\nshelf.make_room(Path({str(root)!r}))\n"
    )
    crowd = [
        subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) for _ in range(3)
    ]
    assert [one.communicate(timeout=60)[1] for one in crowd] == [b""] * 3
    assert shelf.names(root) == [f"run{number}" for number in range(29, 24, -1)]


def test_what_a_killed_process_left_half_made_is_swept_in_time(root: Path) -> None:
    finished(root, "run")
    left = root / ".half-made"
    left.mkdir()
    shelf.make_room(root)
    assert left.exists(), "it may be being made"
    long_ago = time.time() - 7200
    os.utime(left, (long_ago, long_ago))
    shelf.make_room(root)
    assert not left.exists()


# ── reading what others wrote ─────────────────────────────────────────────────────────────────


def test_a_record_that_is_none_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoSuchRun, match="there is no record of a run in"):
        read(tmp_path / "nothing")
    (tmp_path / "record.json").write_text('{"about": 5}')
    with pytest.raises(NoSuchRun, match=r"its record\.json cannot be read"):
        read(tmp_path)


def test_what_a_later_version_wrote_on_top_is_left_out(root: Path) -> None:
    kept = Recorded(root).end()
    assert kept.path is not None
    told = json.loads((kept.path / "record.json").read_text())
    told["about"]["mood"] = told["story"]["mood"] = told["story"]["ranks"][0]["mood"] = "good"
    (kept.path / "record.json").write_text(json.dumps(told))
    assert read(kept.path).ended == "finished"


def test_logs_are_a_list_that_can_be_called() -> None:
    logs = Logs(["a\n", "b\n"])
    assert logs == ["a\n", "b\n"] and logs(1) == logs[1] == "b\n" and logs() == "a\n"


def test_a_disk_without_locks_still_takes_records(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(shelf.fcntl, "lockf", no_locks)
    assert Recorded(root).end().ended == "finished"


def test_writing_down_is_a_small_part_of_the_time_of_a_fast_run(
    root: Path, count_calls: Callable[[Any, str], list[Any]]
) -> None:
    writes = count_calls(records._Folder, "add_points")
    run = Recorded(root)
    run.recorder.FLUSH_INTERVAL_S = 0.5
    for first in range(1, 2000, 2):
        run.steps(first, first + 1)
    assert len(writes) < 20, "points are written in batches, not as they come"
    run.end()


@pytest.fixture
def count_calls(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], list[Any]]:
    def count(owner: Any, name: str) -> list[Any]:
        calls: list[Any] = []
        real = getattr(owner, name)

        def counted(*args: Any) -> Any:
            calls.append(args)
            return real(*args)

        monkeypatch.setattr(owner, name, counted)
        return calls

    return count

"""Progress of long things: to the kernel from a worker, a bar or a line elsewhere, never noise."""

from __future__ import annotations

import contextvars
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from notebook_accel.config.placement import Placement
from notebook_accel.events import context, tasks
from notebook_accel.events.emitter import Emitter, FrameReader
from notebook_accel.events.model import Task


class Never:
    stop = False


def in_worker(function: Callable[[], Any], rank: int = 0) -> list[Any]:
    """Run ``function`` as a launched worker would; give the events it sent."""
    read, write = os.pipe()
    emitter = Emitter(rank, write)
    place = Placement(rank, 2, rank, 2)

    def entered() -> None:
        context.enter(context.WorkerContext(place, emitter, Never(), {}))
        function()

    contextvars.copy_context().run(entered)
    os.close(write)
    events = FrameReader().feed(os.read(read, 1 << 16))
    os.close(read)
    return events


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything take long enough to be shown."""
    monkeypatch.setattr(tasks, "QUIET_S", 0.0)
    monkeypatch.setattr(tasks, "TELL_INTERVAL_S", 0.0)


def test_a_worker_tells_the_start_what_lies_between_and_the_end(soon: None) -> None:
    def work() -> None:
        with tasks.counting("saving checkpoint", 10, "bytes") as wrote:
            wrote(4)
            wrote(6)

    assert in_worker(work) == [
        Task(0, "saving checkpoint", done, 10, "bytes") for done in (0, 4, 10)
    ]


def test_a_task_without_a_known_length_is_told_at_its_start_and_end() -> None:
    def work() -> None:
        with tasks.task("preparing Net"):
            pass

    first, last = in_worker(work)
    assert (first.done, first.total) == (0, None)
    assert last.done == last.total is not None


def test_a_task_that_fails_has_an_end_too() -> None:
    def work() -> None:
        with pytest.raises(KeyError), tasks.task("loading checkpoint", 5):
            raise KeyError("x")

    assert [one.done for one in in_worker(work)] == [0, 5]


def test_only_the_first_rank_of_a_machine_tells_what_all_do() -> None:
    def work() -> None:
        with tasks.task("preparing Net"):
            pass

    assert in_worker(work, rank=1) == []


def test_other_threads_say_nothing(soon: None, capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        with tasks.counting("saving checkpoint", 10, "bytes") as wrote:
            wrote(5)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert capfd.readouterr() == ("", "")


def test_what_is_over_at_once_shows_nothing_in_a_script(capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        with tasks.counting("saving checkpoint", 10, "bytes") as wrote:
            wrote(5)
        with tasks.task("preparing Net"):
            pass
    assert capfd.readouterr() == ("", "")


def test_a_script_shows_a_bar_where_the_length_is_known(
    soon: None, capfd: pytest.CaptureFixture[str]
) -> None:
    with tasks.counting("saving checkpoint", 4_000_000, "bytes") as wrote:
        wrote(1_000_000)
        wrote(2_000_000)
    out, err = capfd.readouterr()
    assert out == ""
    assert "saving checkpoint:  75%" in err and "3.00M/4.00M" in err


@pytest.mark.parametrize("on_screen", [True, False])
def test_a_terminal_keeps_no_bar_of_what_is_over_and_a_log_does(
    soon: None, on_screen: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: on_screen)
    with tasks.counting("importing", 4, "modules") as imported:
        imported(1)
    err = capfd.readouterr().err
    assert "importing: " in err
    assert err.endswith(" \r" if on_screen else "\n")


def test_a_bar_starts_no_thread_for_workers_are_forked_beside_it(soon: None) -> None:
    before = set(threading.enumerate())
    with tasks.counting("importing", 3, "modules") as imported:
        imported(1)
        assert set(threading.enumerate()) == before


def test_a_script_says_in_lines_what_nobody_knows_the_length_of(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tasks, "LINE_QUIET_S", 0.01)
    with tasks.task("preparing Net"):
        said = ""
        for _ in range(1000):
            said += capfd.readouterr().err
            if said:
                break
            threading.Event().wait(0.01)
    assert said == "preparing Net ...\n"
    assert capfd.readouterr().err.startswith("preparing Net took 0.")


def test_only_rank_0_of_a_script_shows_anything(
    soon: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("1", "first"):  # the second is refused where a rank is needed
        monkeypatch.setenv("RANK", name)
        with tasks.counting("saving checkpoint", 10, "bytes") as wrote:
            wrote(5)
    assert capfd.readouterr() == ("", "")

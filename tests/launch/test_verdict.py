"""Whose fault it was, from what ranks left behind."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from notebook_accel.errors import RanksStuck, RunTimeout, WorkerDied, WorkerFailed
from notebook_accel.events.model import Failed, Frame, Returned
from notebook_accel.launch import failure, verdict
from notebook_accel.launch.seat import Lane
from notebook_accel.launch.supervise import RankState


def rank(number: int, **facts: Any) -> RankState:
    return RankState(Lane(number, -1, -1, -1, -1, -1), **facts)


def failed(number: int, error: BaseException, line: int = 3) -> Failed:
    frames = [Frame("train.py", line, "main", "x = y")]
    text = f"{type(error).__name__}: {error}\n"
    name = type(error).__name__
    return Failed(number, name, str(error), frames, text, failure.is_comm_error(error), 1)


GONE = RuntimeError("[gloo/transport/tcp/pair.cc:544] Connection closed by peer [127.0.0.1]:4071")


def test_the_first_failure_of_its_own_is_blamed_not_the_broken_connection_before_it() -> None:
    ranks = [
        rank(0, failed=failed(0, GONE), order=1),
        rank(1, failed=failed(1, ValueError("bad label")), order=2),
    ]
    error = verdict.blame(ranks, lambda number: ValueError("bad label"))
    assert isinstance(error, ValueError)
    assert "raised in rank 1" in error.__notes__[0]
    assert isinstance(error.__cause__, failure.WorkerTraceback)


def test_the_same_failure_of_several_ranks_is_one_message() -> None:
    ranks = [
        rank(n, failed=failed(n, ValueError(f"rank {n} has a bad label")), order=n + 1)
        for n in range(3)
    ]
    ranks[2] = rank(2, failed=failed(2, ValueError("rank 2 has a bad label"), line=9), order=3)
    error = verdict.blame(ranks, lambda number: ValueError("rank 0 has a bad label"))
    assert error.__notes__[0].startswith("raised in ranks 0 and 1")


def test_an_exception_that_could_not_travel_comes_as_worker_failed_with_its_story() -> None:
    error = verdict.blame([rank(0, failed=failed(0, ValueError("x")), order=1)], lambda n: None)
    assert isinstance(error, WorkerFailed)
    assert error.what == "rank 0 raised ValueError: x"
    assert error.rank == 0
    assert "ValueError: x" in error.worker_traceback


@pytest.mark.parametrize(
    ("number", "word"),
    [
        (signal.SIGKILL, "memory runs out"),
        (signal.SIGSEGV, "native code"),
        (signal.SIGABRT, "abort"),
        (signal.SIGBUS, "shared memory"),
        (signal.SIGTERM, "outside the launcher"),
        (signal.SIGUSR1, "a signal ended it"),
    ],
)
def test_death_by_a_signal_names_it_the_rank_and_the_last_step(
    number: signal.Signals, word: str
) -> None:
    ranks = [rank(0, failed=failed(0, GONE), order=1), rank(1, code=-number, order=2, last_step=7)]
    error = verdict.blame(ranks, lambda n: None)
    assert isinstance(error, WorkerDied)
    assert error.what == f"rank 1 was killed by {number.name}, after step 7"
    assert word in error.why
    assert error.fix
    assert (error.rank, error.exit_code) == (1, -number)


def test_a_signal_without_a_name_is_told_by_its_number() -> None:
    error = verdict.blame([rank(0, code=-40, order=1)], lambda n: None)
    assert str(error).startswith("rank 0 was killed by signal 40, before its first step")


def test_an_exit_code_without_a_report_is_named() -> None:
    error = verdict.blame([rank(0, code=3, order=1)], lambda n: None)
    assert str(error).startswith("rank 0 left with exit code 3, before its first step")


def test_sys_exit_is_named_with_its_line() -> None:
    leaving = SystemExit(3)
    error = verdict.blame([rank(0, failed=failed(0, leaving), order=1)], lambda n: leaving)
    assert isinstance(error, WorkerDied)
    assert error.what.startswith("rank 0 called sys.exit(3) at File train.py:3")
    assert error.exit_code == 3


def test_a_rank_that_returned_early_is_named_when_only_connections_broke() -> None:
    ranks = [
        rank(0, failed=failed(0, GONE), order=1, last_step=4),
        rank(1, returned=Returned(1, 10), last_step=3, code=0),
    ]
    error = verdict.blame(ranks, lambda n: None)
    assert isinstance(error, WorkerDied)
    assert error.what.startswith(
        "rank 1 returned early, after step 3, while rank 0 waited for it at File train.py:3"
    )
    assert "the same collectives" in error.fix
    assert "under `if accelerator.is_main_process`: take it out" in error.fix


def test_a_broken_connection_that_nothing_explains_is_raised_itself() -> None:
    error = verdict.blame([rank(0, failed=failed(0, GONE), order=1)], lambda n: GONE)
    assert error is GONE


def test_an_error_raised_because_of_a_broken_connection_counts_as_one() -> None:
    try:
        try:
            raise GONE
        except RuntimeError as reason:
            raise ValueError("could not average") from reason
    except ValueError as error:
        assert failure.is_comm_error(error)
    assert not failure.is_comm_error(RuntimeError("shape mismatch"))
    assert not failure.is_comm_error(ValueError("the connection closed by peer"))


def test_a_timeout_says_where_each_rank_was() -> None:
    stacks = (
        'Thread 0x1 (most recent call first):\n  File "x.py", line 1 in other\n\n'
        "Current thread 0x2 (most recent call first):\n"
        '  File "/lib/torch/distributed/c10d.py", line 99 in barrier\n'
        '  File "train.py", line 12 in main\n'
    )
    ranks = [rank(0, last_step=2), rank(1, returned=Returned(1, 1), last_step=2), rank(2)]
    error = verdict.timed_out(1.5, ranks, {0: stacks})
    assert isinstance(error, RunTimeout)
    assert error.what == "the run took longer than timeout_s=1.5"
    assert "rank 0 was at File train.py:12, in main, inside barrier, after step 2" in error.why
    assert "rank 1 had returned, after step 2" in error.why
    assert "rank 2 could not be asked, before its first step" in error.why


def test_a_rank_that_was_stopped_while_it_waited_has_not_returned() -> None:
    """The request to stop reaches it before the end of the run is read."""
    left = rank(1, returned=Returned(1, 0), last_step=4)
    for waiting in (rank(0), rank(0, returned=Returned(0, 0, stopped=True))):
        error = verdict.stuck([waiting, left])
        assert isinstance(error, WorkerDied)
        assert error.what.startswith("rank 1 returned early, after step 4, while rank 0 waited")
    both = [rank(0, returned=Returned(0, 0, True)), rank(1, returned=Returned(1, 0, True))]
    assert isinstance(verdict.stuck(both), RanksStuck)
    assert isinstance(verdict.stuck([left, rank(0, returned=Returned(0, 0))]), RanksStuck)

"""What is said of ranks that wait for each other, from what their pulses show."""

from __future__ import annotations

import signal
from typing import Any

from notebook_accel.errors import RanksStuck, WorkerDied
from notebook_accel.events.model import Failed, Frame, Landmark, Returned
from notebook_accel.events.pulse import Beat
from notebook_accel.launch import verdict
from notebook_accel.launch.seat import Lane
from notebook_accel.launch.supervise import RankState
from notebook_accel.launch.waits import Wait


def rank(number: int, call: str, line: int, beat: Beat, **facts: Any) -> RankState:
    landmark = Landmark(number, 1, call, Frame("train.py", line, "main", ""))
    wait = Wait(number, beat, landmarks={1: landmark})
    return RankState(Lane(number, -1, -1, -1, -1, -1), wait, **facts)


GATHER = Beat(4, True, "all_gather", 1, 8, 3)
BACKWARD = Beat(4, True, "backward", 1, 0, 4)


def test_ranks_in_different_places_are_named_with_their_lines_and_counts() -> None:
    error = verdict.stuck([rank(0, "gather", 14, GATHER), rank(1, "backward", 9, BACKWARD)])
    assert isinstance(error, RanksStuck)
    assert error.what == (
        "the ranks wait for each other in different places: "
        "rank 0 in gather at File train.py:14, rank 1 in backward at File train.py:9"
    )
    assert "backward so far, rank 0: 3, rank 1: 4" in error.why
    assert "other collectives so far, rank 0: 1, rank 1: 0" in error.why
    assert "take it out of `if accelerator.is_main_process`" in error.fix
    assert "where one rank leaves a loop early (break, continue)" in error.fix


def test_a_rank_that_returned_is_named_before_the_one_that_waits() -> None:
    early = rank(1, "gather", 3, Beat(), returned=Returned(1, 0), last_step=3)
    error = verdict.stuck([rank(0, "wait_for_everyone", 14, GATHER), early])
    assert isinstance(error, WorkerDied)
    assert error.rank == 1
    assert error.what == (
        "rank 1 returned early, after step 3, while rank 0 waited for it "
        "in wait_for_everyone at File train.py:14"
    )


def test_broken_connections_between_different_collectives_are_explained_too() -> None:
    noise = "[/build/gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:50. Ask somebody!"
    failed = [Failed(n, "RuntimeError", noise, [], noise, is_comm=True) for n in (0, 1)]
    ranks = [
        rank(0, "gather", 14, GATHER, failed=failed[0], order=1),
        rank(1, "backward", 9, BACKWARD, failed=failed[1], order=2),
    ]
    error = verdict.blame(ranks, lambda number: None)
    assert isinstance(error, RanksStuck)
    assert "what rank 0 saw: Connection closed by peer [127.0.0.1]:50.;" in error.why


def test_an_abort_of_gloo_over_different_sizes_is_explained() -> None:
    larger = Beat(4, True, "all_gather", 1, 12, 3)
    ranks = [
        rank(0, "gather", 14, GATHER, code=-signal.SIGABRT, order=1),
        rank(1, "gather", 14, larger),
    ]
    error = verdict.blame(ranks, lambda number: None)
    assert isinstance(error, RanksStuck)
    assert error.what == (
        "the ranks bring tensors of different sizes to one collective: "
        "rank 0 8 bytes in gather at File train.py:14, "
        "rank 1 12 bytes in gather at File train.py:14"
    )
    assert "pad_across_processes" in error.fix


def test_unlike_sizes_on_different_lines_are_different_places() -> None:
    """A gathering under `if is_main_process`, while the other rank is in the next forward."""
    larger = Beat(4, True, "all_gather", 1, 12, 3)
    ranks = [
        rank(0, "get_state_dict", 13, GATHER, code=-signal.SIGABRT, order=1),
        rank(1, "forward", 10, larger),
    ]
    error = verdict.blame(ranks, lambda number: None)
    assert isinstance(error, RanksStuck)
    assert error.what == (
        "the ranks wait for each other in different places: "
        "rank 0 in get_state_dict at File train.py:13, rank 1 in forward at File train.py:10"
    )
    assert "take it out of `if accelerator.is_main_process`" in error.fix
    assert "pad_across_processes" in error.fix


def test_a_rank_that_went_on_to_the_next_collective_of_the_same_call_is_in_the_same_place() -> None:
    refusing = Beat(5, True, "all_gather_object", 1, 0, 3)
    ranks = [
        rank(0, "gather", 14, GATHER, code=-signal.SIGABRT, order=1),
        rank(1, "gather", 14, refusing),
    ]
    error = verdict.blame(ranks, lambda number: None)
    assert isinstance(error, RanksStuck)
    assert error.what == (
        "the ranks bring tensors of different sizes to one collective: "
        "rank 0 8 bytes in gather at File train.py:14, "
        "rank 1 in gather at File train.py:14"
    )


def test_an_abort_in_the_same_collective_stays_an_abort() -> None:
    ranks = [
        rank(0, "gather", 14, GATHER, code=-signal.SIGABRT, order=1),
        rank(1, "gather", 14, GATHER),
    ]
    error = verdict.blame(ranks, lambda number: None)
    assert isinstance(error, WorkerDied)
    assert "SIGABRT" in error.what

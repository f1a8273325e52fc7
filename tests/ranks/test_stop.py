"""Stopping together: alone at once, among ranks at one agreed boundary, never without a launch."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from notebook_accel.errors import StopRun
from notebook_accel.ranks.stop import StopAgreement
from notebook_accel.ranks.world import World
from tests.support.ranks import run_ranks


@dataclass
class Page:
    stop: bool = False


def test_alone_the_next_boundary_stops_and_only_once() -> None:
    page = Page()
    agreement = StopAgreement(World.alone(), page)
    for _ in range(5):
        agreement.boundary()
    page.stop = True
    with pytest.raises(StopRun, match="stopped at boundary 6"):
        agreement.boundary()
    agreement.boundary()  # a finally block may go on


def test_without_a_launch_nothing_ever_stops() -> None:
    agreement = StopAgreement(World.alone(), None)
    for _ in range(100):
        agreement.boundary()


def stops_when_one_is_asked():
    import time

    from notebook_accel.errors import StopRun
    from notebook_accel.ranks.stop import StopAgreement
    from notebook_accel.ranks.world import World

    class Page:
        stop = False

    world = World.join(cpu=True)
    stopped_at = []
    for asked in range(2):
        page = Page()
        agreement = StopAgreement(world, page)
        boundary = 0
        started = time.monotonic()
        try:
            while time.monotonic() - started < 60:
                boundary += 1
                if world.rank == asked and boundary >= 150:
                    page.stop = True
                time.sleep(0.002 if world.rank else 0.001)
                agreement.boundary()
        except StopRun:
            stopped_at.append(boundary)
    return stopped_at


def test_all_ranks_stop_at_one_boundary_whoever_was_asked() -> None:
    first, second = run_ranks(stops_when_one_is_asked, 2)
    assert first == second
    assert len(first) == 2
    assert all(150 <= boundary < 2000 for boundary in first)


def answers_a_question_with_other_numbers():
    import torch
    import torch.distributed as dist

    from notebook_accel.ranks.stop import MAX_DISTANCE, StopAgreement
    from notebook_accel.ranks.world import World

    class Page:
        stop = False

    world = World.join(cpu=True)
    distances = []
    for number in (7, 2**40, torch.tensor([1.5, 2.5, 0.25, 8.0]).view(torch.int64)[0].item()):
        agreement = StopAgreement(world, Page())
        if world.rank:  # it is in a collective of its own
            dist.all_reduce(torch.full((2,), number), dist.ReduceOp.MAX)
        else:
            agreement.boundary()
            distances.append(1 <= agreement._distance <= MAX_DISTANCE)
    return distances


def test_what_another_collective_brings_stops_nobody() -> None:
    """Ranks that went different ways can meet in unlike collectives of one size."""
    first, _ = run_ranks(answers_a_question_with_other_numbers, 2)
    assert first == [True] * 3

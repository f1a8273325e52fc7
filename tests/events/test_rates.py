"""How much a run has done, and how fast it goes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from notebook_accel.events.model import Progress
from notebook_accel.events.rates import Rates


@dataclass
class Clock:
    """Seconds that the test moves."""

    now: float = 100.0


def test_rates_are_sums_over_ranks_and_the_pass_ends_when_its_batches_do():
    rates, clock = Rates(2), Clock()
    for step in range(1, 5):
        for rank in (0, 1):
            rates.handle(Progress(rank, step, 0, step, 10, samples=32 * step), clock.now)
        clock.now += 1.0
    pace = rates.pace()
    assert pace.steps_per_s == pytest.approx(1.0)
    assert pace.samples_per_s == pytest.approx(64.0)
    assert pace.pass_left_s == pytest.approx(6.0)
    assert (rates.step, rates.samples) == (4, 256)


def test_rates_know_nothing_before_they_saw_something():
    rates = Rates(1)
    assert rates.newest is None
    assert rates.pace().steps_per_s is None
    rates.handle(Progress(0, 1, 0, 1, None, samples=4), 5.0)
    assert rates.pace().pass_left_s is None


def test_the_rate_is_that_of_the_last_seconds():
    rates = Rates(1)
    for second in range(20):
        step = 100 * min(second, 10) + max(0, second - 10)
        rates.handle(Progress(0, step, 0, step, None, samples=step), float(second))
    assert rates.pace().steps_per_s == pytest.approx(1.0)


def test_work_of_an_earlier_run_is_not_counted():
    rates = Rates(2)
    for step in (61, 62):
        for rank in (0, 1):
            rates.handle(Progress(rank, step, samples=8 * (step - 60), from_step=60), float(step))
    assert (rates.step, rates.from_step, rates.steps, rates.samples) == (62, 60, 2, 32)
    assert rates.pace().samples_per_s == pytest.approx(16.0)


def test_loops_that_follow_each_other_add_up():
    rates = Rates(1)
    rates.handle(Progress(0, 50, samples=400, data_wait_s=1.0))
    rates.handle(Progress(0, 3, samples=24, data_wait_s=0.25))  # another Accelerator counts anew
    rates.handle(Progress(0, 30, samples=240, data_wait_s=0.5))
    assert (rates.step, rates.from_step, rates.steps, rates.samples) == (30, 0, 80, 640)


def test_a_run_that_loads_a_checkpoint_in_its_middle_keeps_what_it_did_before():
    rates = Rates(1)
    rates.handle(Progress(0, 100, samples=800))
    rates.handle(Progress(0, 61, samples=8, from_step=60))
    rates.handle(Progress(0, 144, samples=672, from_step=60))
    assert (rates.step, rates.from_step, rates.steps, rates.samples) == (144, 0, 184, 1472)

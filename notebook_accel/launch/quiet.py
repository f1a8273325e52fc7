"""A launch nobody sees: ranks without a line, a view or a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from notebook_accel.launch import devices, preflight, start
from notebook_accel.launch.plan import LaunchPlan, plan
from notebook_accel.launch.result import RunResult
from notebook_accel.launch.run import Attempt, Interrupts, Order


def run_quietly(
    function: Callable[..., Any], args: Sequence[Any], num_ranks: int, timeout_s: float
) -> RunResult:
    """Run ``function(*args)`` on ``num_ranks`` CPU processes that meet over gloo.

    Ranks: called in the notebook's own process.
    Errors: as ``notebook_launcher``.
    """
    preflight.check_call(function, args, num_processes=num_ranks)
    placed = plan(num_ranks, "cpu", [], devices.usable_cores())
    interrupts = Interrupts()
    attempt = quiet_attempt(function, args, placed, "auto", timeout_s, interrupts)
    with interrupts:
        return attempt.go()


def quiet_attempt(
    function: Callable[..., Any],
    args: Sequence[Any],
    placed: LaunchPlan,
    start_method: str,
    timeout_s: float,
    interrupts: Interrupts,
) -> Attempt:
    """Make such a launch of the ranks in ``placed``, ready to go.

    Errors: LaunchError for a start method that cannot work here.
    """
    choice = start.choose(start_method)
    start.prepare(choice.method)
    order = Order(
        job=start.Job(function, tuple(args), {}),
        plan=placed,
        choice=choice,
        settings={},
        env={},
        master_addr="127.0.0.1",
        port=None,
        timeout_s=timeout_s,
        on_interrupt="raise",
    )
    return Attempt(order, interrupts)

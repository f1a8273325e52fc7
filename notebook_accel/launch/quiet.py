"""A launch nobody sees: ranks on the CPU, without a line, a view or a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from notebook_accel.launch import devices, preflight, start
from notebook_accel.launch.plan import plan
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
    choice = start.choose("auto")
    start.prepare(choice.method)
    with Interrupts() as interrupts:
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
        return Attempt(order, interrupts).go()

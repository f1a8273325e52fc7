"""From an order to a result: one attempt, and others after it while restarts are left."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from notebook_accel.errors import RunInterrupted, RunTimeout
from notebook_accel.events.controls import Controls
from notebook_accel.events.history import History
from notebook_accel.events.sinks import Sink
from notebook_accel.launch.handle import Run
from notebook_accel.launch.result import RunResult
from notebook_accel.launch.run import Attempt, Interrupts, Order, with_restart
from notebook_accel.launch.streams import say

_VIEW = "notebook_accel.ui.live"


def attempts(
    make_order: Callable[[], Order],
    make_sinks: Callable[[], list[Sink]],
    max_restarts: int,
    handle: Run | None,
) -> RunResult:
    """Carry out the order, again after each failure while restarts are left.

    Errors: as ``Attempt.go``, of the last attempt.
    """
    with Interrupts() as interrupts:
        order = make_order()
        for number in range(max_restarts + 1):
            attempt = Attempt(with_restart(order, number), interrupts, is_recorded=True)
            equip(attempt, make_sinks(), len(order.plan.placements), handle)
            try:
                return attempt.go()
            except (RunInterrupted, RunTimeout):
                raise
            except Exception as error:
                if number == max_restarts:
                    raise
                say(
                    f"note: {type(error).__name__}: {error}\n"
                    f"note: starting all ranks again ({number + 1} of {max_restarts} restarts)",
                    order.name,
                )
    raise AssertionError("unreachable: the last attempt returns or raises")


def equip(attempt: Attempt, sinks: list[Sink], num_ranks: int, handle: Run | None) -> None:
    """Give an attempt its sinks and its view, and to the handle, before it starts."""
    order = attempt.order
    name = f"{order.name}: " if order.name else ""
    title = f"{name}{order.plan.device_words}, {order.choice.method}"
    controls = Controls(attempt.stop, attempt.kill, handle is None, attempt.beats)
    attempt.add_sinks([*sinks, view(attempt.history, title, num_ranks, controls)])
    if handle is not None:
        handle.attach(attempt)


def view(history: History, title: str, num_ranks: int, controls: Controls | None = None) -> Sink:
    """Make the live view by its name: the launch side does not import what draws."""
    made: Sink = importlib.import_module(_VIEW).live_view(history, title, num_ranks, controls)
    return made

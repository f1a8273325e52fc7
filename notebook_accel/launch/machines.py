"""A run over several machines: this machine's part, attempt by attempt, as torch's agent says.

The agent (``launch.elastic``) says when to start, with which ranks, and when to end them for a
new start. Here its words become attempts: the same ``Attempt`` that a run on one machine makes,
with ranks that count over all machines.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from notebook_accel.errors import LaunchError, RunInterrupted, RunTimeout
from notebook_accel.events.sinks import Sink
from notebook_accel.launch import addresses, elastic, store
from notebook_accel.launch.attempts import equip
from notebook_accel.launch.elastic import Agent, End, Meeting, Start, Stop
from notebook_accel.launch.failure import is_comm_error
from notebook_accel.launch.handle import Run
from notebook_accel.launch.result import RunResult
from notebook_accel.launch.run import Attempt, Interrupts, Order, with_restart

GRACE_S = 5.0  # when the agent has ended: for the ranks to say themselves what went wrong


class Listening(Sink):
    """A sink that hears the agent while an attempt goes on, and ends it when it is told to."""

    def __init__(self, agent: Agent, attempt: Attempt) -> None:
        self.word: Stop | Start | End | None = None
        self._agent = agent
        self._attempt = attempt
        self._due = 0.0

    def tick(self) -> None:
        """Hear the agent; end the ranks when the run goes on without them."""
        if self.word is None:
            self.word = self._agent.heard()
            self._due = time.monotonic() + (GRACE_S if isinstance(self.word, End) else 0.0)
        if self.word is not None and time.monotonic() >= self._due:
            self._due = float("inf")
            self._attempt.give_way()


def together(
    agent: Agent,
    make_attempt: Callable[[Start], Attempt],
    interrupted: Callable[[], bool],
    idle: Callable[[], None] = lambda: None,
) -> RunResult:
    """Carry out attempts of this machine's ranks until the agent says that the run has ended.

    ``interrupted`` is asked, and ``idle`` called, while the agent waits for other machines.

    Errors: as ``Attempt.go``, of the last attempt; LaunchError when the machines did not come or
        stay together; RunInterrupted while they had not met.
    """
    result: RunResult | None = None
    error: BaseException | None = None
    while True:
        try:
            word = elastic.wait(agent, interrupted, idle)
        except LaunchError as lost:  # by ``idle``; what an attempt ended with says more
            word, error = End(True), error or lost
        if word is None or isinstance(word, End):
            break
        if word.attempt:
            print(
                (f"note: {type(error).__name__}: {error}\n" if error is not None else "")
                + f"note: starting all ranks on all machines again (restart {word.attempt})"
            )
        attempt = make_attempt(word)
        listening = Listening(agent, attempt)
        attempt.add_sinks([listening])
        result, error = _carry_out(attempt)
        if attempt.gives_way:  # then neither is the run's
            result, error = None, None if isinstance(error, RunInterrupted) else error
        if isinstance(listening.word, Stop):
            agent.tell(elastic.STOPPED)
        elif isinstance(listening.word, End):
            word = listening.word
            break
        elif isinstance(error, (RunInterrupted, RunTimeout)):
            elastic.leave(agent)
            raise error
        elif result is not None and interrupted():
            elastic.leave(agent)
            return result
        else:
            agent.tell(elastic.FAILED if error is not None else elastic.SUCCEEDED)
    if result is not None:
        return result
    if isinstance(word, End) and word.why and error is not None and is_comm_error(error):
        raise elastic.apart(word, agent.place) from error  # what a rank saw of it
    if error is not None:
        raise error
    if word is None:
        raise RunInterrupted("the launch was stopped while the machines were meeting")
    raise elastic.apart(word, agent.place)


def _carry_out(attempt: Attempt) -> tuple[RunResult | None, BaseException | None]:
    try:
        return attempt.go(), None
    except (RunInterrupted, Exception) as error:
        return None, error


def together_words(words: Sequence[str]) -> str:
    """Say what all machines train on: "2 machines with 2 CPU processes each"."""
    if len(set(words)) == 1:
        return f"{len(words)} machines with {words[0]} each"
    return f"{len(words)} machines with " + " + ".join(words)


def placed(order: Order, start: Start) -> Order:
    """The same order for the ranks that torch's agent gave this machine."""
    placements = tuple(
        replace(one, rank=start.first_rank + one.local_rank, size=start.size)
        for one in order.plan.placements
    )
    return with_restart(
        replace(
            order,
            env={"GROUP_RANK": str(start.node), **order.env},
            plan=replace(order.plan, placements=placements),
            master_addr=start.host,
            port=start.port,
            agent_store=True,
        ),
        start.attempt,
    )


def same_cell(
    meeting: Meeting,
    make_order: Callable[[], Order],
    make_sinks: Callable[[int, int], list[Sink]],
    handle: Run | None,
) -> RunResult:
    """Run this machine's part; every other machine runs the same cell.

    Errors: as ``together``; ConfigError when this machine cannot serve the store.
    """
    if lost := addresses.unknown(meeting.host):
        print(f"note: {lost}")
    with contextlib.ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        listener = None
        if meeting.backend == "static" and meeting.node_rank == 0:
            listener = stack.enter_context(listen(meeting.host, meeting.port))
        place = f"{meeting.host}:{meeting.port}"
        agent = Agent(seen_from_here(meeting, listener), listener, place)
        stack.callback(agent.close)
        order = make_order()
        order = replace(order, env={**through(meeting), **order.env})

        def attempt(start: Start) -> Attempt:
            own = Attempt(placed(order, start), interrupts, is_recorded=True)
            num_ranks = len(own.order.plan.placements)
            equip(own, make_sinks(start.first_rank, num_ranks), num_ranks, handle)
            return own

        def interrupted() -> bool:
            return interrupts.count > 0 or (handle is not None and handle.asked)

        return together(agent, attempt, interrupted)


def listen(host: str, port: int) -> socket.socket:
    """Listen at the address ``host``; at all of this machine's where that is a name or not its own.

    A machine's own name often stands for a loopback address in its own eyes only, and a machine
    behind a router is known by an address of the router's.

    Errors: ConfigError when the port is taken.
    """
    if not addresses.is_number(host):
        return store.listen("", port)
    try:
        with socket.socket() as probe:
            probe.bind((host, 0))
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            return store.listen("", port)
    return store.listen(host, port)


def seen_from_here(meeting: Meeting, listener: socket.socket | None) -> Meeting:
    """The same meeting for the machine that serves it at all of its addresses."""
    if listener is None or listener.getsockname()[0] != "0.0.0.0":
        return meeting
    return replace(meeting, host="127.0.0.1")


def through(meeting: Meeting) -> dict[str, str]:
    """Give the ranks' variables for the interface that leads to the meeting, if it is known."""
    address = addresses.towards(meeting.host, meeting.port)
    if addresses.is_loopback(address) and not addresses.is_loopback(meeting.host):
        return {}  # it is held here: that does not tell by which way the others come
    return talking_through(address)


def talking_through(address: str) -> dict[str, str]:
    """Give the ranks' variables for the interface of ``address``, where the person set none."""
    found = addresses.talking_through(address)
    return {name: value for name, value in found.items() if name not in os.environ}

"""The other side of ``join``: prove the token, take the plan, run this machine's ranks.

The command that joined is to its ranks what the notebook is to its own: it starts, watches and
ends them, and sends all that they say up to the notebook. It never opens the packed function:
only its ranks do. When the notebook is gone, so are they.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import replace
from typing import Any

from notebook_accel.errors import ConfigError, Explained, LaunchError, RunInterrupted
from notebook_accel.events.model import Landmark, Stuck
from notebook_accel.events.sinks import Sink
from notebook_accel.launch import devices, frames, likeness, machines, start
from notebook_accel.launch.elastic import Agent, Meeting, Start
from notebook_accel.launch.frames import Channel
from notebook_accel.launch.memory import anonymous_file, map_privately
from notebook_accel.launch.plan import LaunchPlan, plan
from notebook_accel.launch.result import RunResult
from notebook_accel.launch.run import Attempt, Interrupts, Order
from notebook_accel.launch.seat import Lane
from notebook_accel.launch.supervise import RankState, Supervisor

CONNECT_S = 10.0
QUIET_S = 60.0  # between two pieces of the plan
_OWN = (Landmark, Stuck)  # what only the process that watches the ranks can read


def join(host: str, port: int, token: str) -> str:
    """Join the run whose notebook waits at ``host:port``; give how it ended.

    Errors: LaunchError when nobody waits there or this machine is not let in; what ended the run.
    """
    with contextlib.ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        sock = stack.enter_context(_connect(host, port))
        try:
            channel, theirs = frames.enter(sock, token, likeness.facts())
        except OSError as error:
            raise frames.not_let_in(f"the connection broke: {error}") from None
        home = Home(channel)
        stack.callback(home.leave)
        given, payload = _receive_plan(channel, interrupts)
        stack.callback(os.close, payload)
        placed = _place(channel, given)
        meeting = Meeting(**{**given["meeting"], "num_local": len(placed.placements)})
        channel.send(("ready", len(placed.placements), placed.device_words))
        print(
            f"Joined the run of {theirs.get('name')} as machine {meeting.node_rank} of "
            f"{meeting.num_nodes}: {placed.device_words}. Its output appears in the notebook.",
            flush=True,
        )
        agent = Agent(meeting)
        stack.callback(agent.close)
        order = _order(placed, given, payload, channel.here)

        def attempt(word: Start) -> Attempt:
            return Branch(machines.placed(order, word), interrupts, home, word)

        def interrupted() -> bool:
            return interrupts.count > 0 or home.over

        try:
            machines.together(agent, attempt, interrupted, home.hear)
        except RunInterrupted:
            if home.lost:
                raise LaunchError(
                    "the notebook is gone, and the ranks of this machine with it",
                    home.lost,
                    "run the cell again, and the join line with a new token",
                ) from None
            return "The run was stopped."
        except BaseException as error:
            home.why = f"{type(error).__name__}: {error}"
            raise
        return "The run is over."


class Home:
    """The line to the notebook, as the joined machine holds it."""

    def __init__(self, channel: Channel) -> None:
        self.why = "it was stopped there"
        self.lost = ""
        self.over = False
        self._channel = channel
        self._attempt: Branch | None = None

    def serve(self, attempt: Branch) -> None:
        """Let what the notebook asks reach ``attempt`` from now on."""
        self._attempt = attempt

    def send(self, *message: Any) -> None:
        """Tell the notebook; once it is gone, nobody."""
        if self.lost:
            return
        try:
            self._channel.send(message)
        except OSError as error:
            self._lose(str(error))

    def send_file(self, fd: int) -> None:
        """Send what is in a file."""
        try:
            self._channel.send_bytes(map_privately(fd))
        except OSError as error:
            self._lose(str(error))

    def hear(self) -> None:
        """Do what the notebook asks."""
        if self.lost:
            return
        try:
            come = self._channel.receive()
        except (OSError, LaunchError) as error:
            self._lose(error.what if isinstance(error, LaunchError) else str(error))
            return
        for word, *rest in come:
            if word == "end":
                self.over = True
                self._end()
            elif self._attempt is not None and rest[0] == self._attempt.number:
                self._attempt.stop() if word == "stop" else self._attempt.kill()

    def leave(self) -> None:
        """Say goodbye."""
        self.send("bye", self.why)

    def _lose(self, why: str) -> None:
        self.lost = why
        self.over = True
        self._end()

    def _end(self) -> None:
        if self._attempt is not None:
            self._attempt.kill()


class Branch(Attempt):
    """One attempt of this machine's ranks: what they say, return and fail with goes home."""

    def __init__(self, order: Order, interrupts: Interrupts, home: Home, word: Start) -> None:
        super().__init__(order, interrupts)
        self.number = word.attempt
        self._home = home
        self._told = False
        self.add_sinks([_Forwarder(home, word.first_rank)])
        home.send("begin", self.number, word.first_rank)
        home.serve(self)

    def go(self) -> RunResult:
        """Run the ranks, and tell the notebook how it ended.

        Errors: as ``Attempt.go``, with the descriptions of exceptions in their place.
        """
        try:
            return super().go()
        except BaseException as error:
            if isinstance(error, Exception) and isinstance(
                getattr(error, "result", None), RunResult
            ):
                error.result = None  # type: ignore[attr-defined] # the notebook has it all
            self._tell("failed", error if isinstance(error, Exception) else None)
            raise

    def _read_out(self, supervisor: Supervisor, lanes: list[Lane], took_s: float) -> RunResult:
        for state in supervisor.ranks:
            if state.returned is not None or (state.failed is not None and state.failed.num_bytes):
                self._home.send("result", state.rank)
                self._home.send_file(state.lane.result)
        reason = supervisor.ending.reason if supervisor.ending is not None else ""
        if self.gives_way:
            self._tell("gave way")
        elif reason == "interrupt":
            self._tell("stopped")
        elif reason == "failure":
            self._tell("failed")
        elif not reason:
            self._tell("returned")
        return super()._read_out(supervisor, lanes, took_s)

    def _tell(self, how: str, error: BaseException | None = None) -> None:
        if not self._told:
            self._told = True
            self._home.send("over", how, error)

    def _value(self, state: RankState, needed: bool) -> Any:
        return []  # it is the notebook's, unopened

    def _error(self, reason: str, supervisor: Supervisor) -> BaseException:
        """Say at this end only that it failed: why, and whose fault it was, the notebook knows."""
        if reason != "failure":
            return super()._error(reason, supervisor)
        first = min((state for state in supervisor.ranks if state.order), key=lambda s: s.order)
        said = "ended without a word"
        if first.failed is not None:
            said = f"raised {first.failed.type_name}: {first.failed.message}"
        return LaunchError(
            f"the run failed; what rank {first.rank} of this machine did: it {said}",
            "ranks of one run end together, and the first that fails here need not be the cause",
            "read the notebook: it shows which rank of which machine failed, and where",
        )


class _Forwarder(Sink):
    """A sink that sends events to the notebook, with ranks that count over all machines."""

    def __init__(self, home: Home, first_rank: int) -> None:
        self._home = home
        self._first = first_rank
        self._batch: list[Any] = []

    def handle(self, event: Any) -> None:
        if not isinstance(event, _OWN):
            self._batch.append(replace(event, rank=event.rank + self._first))

    def tick(self) -> None:
        if self._batch:
            batch, self._batch = self._batch, []
            self._home.send("events", batch)
        self._home.hear()

    def close(self) -> None:
        self.tick()


def _connect(host: str, port: int) -> socket.socket:
    try:
        return socket.create_connection((host, port), CONNECT_S)
    except OSError as error:
        raise LaunchError(
            f"no notebook waits at {host}:{port}: {error}",
            "it waits only until all machines have joined, or its time is over",
            "copy the line that the notebook shows now; a closed port is an old line",
        ) from None


def _receive_plan(channel: Channel, interrupts: Interrupts) -> tuple[dict[str, Any], int]:
    """Take the plan, and the packed call into a file that nobody here opens."""
    given: dict[str, Any] = {}
    left = -1
    payload = anonymous_file("payload")
    quiet_at = time.monotonic() + QUIET_S
    while left != 0:
        if interrupts.count or time.monotonic() > quiet_at:
            os.close(payload)
            raise frames.not_let_in("it was stopped" if interrupts.count else "no plan came")
        try:
            come = channel.receive(0.1)
        except ConnectionError as error:
            os.close(payload)
            raise frames.not_let_in(str(error)) from None
        for one in come:
            quiet_at = time.monotonic() + QUIET_S
            if isinstance(one, bytes):
                left -= os.write(payload, one)
            else:
                _, given, left = one
    return given, payload


def _place(channel: Channel, given: dict[str, Any]) -> LaunchPlan:
    """Place the ranks on this machine, or tell the notebook why that cannot be."""
    meeting = given["meeting"]
    try:
        placed = plan(
            meeting["num_local"],
            given["device"],
            devices.accelerators(),
            devices.usable_cores(),
            meeting["node_rank"],
            meeting["num_nodes"],
        )
        kind = placed.placements[0].device.partition(":")[0]
        if kind != given["kind"]:
            raise ConfigError(
                f"this machine would train on {kind}, the notebook's trains on {given['kind']}",
                "ranks of one run talk through one library, which is of their kind of device",
                'pass device="cpu" in the notebook, or join with a machine of its kind',
            )
    except Explained as error:
        channel.send(("cannot", error.what))
        raise
    return placed


def _order(placed: LaunchPlan, given: dict[str, Any], payload: int, here: str) -> Order:
    choice = start.choose(given["start_method"])
    start.prepare(choice.method)
    env = {**machines.talking_through(here), **given["env"]}
    return Order(
        job=start.PackedJob(_packed, (), {}, payload),
        plan=placed,
        choice=choice,
        settings=given["settings"],
        env=env,
        master_addr="",
        port=None,
        timeout_s=None,
        on_interrupt="raise",
    )


def _packed() -> None:
    """Stand for the function that only the ranks open."""

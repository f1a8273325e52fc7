"""The notebook's side of ``join``: let other machines in, hand them the plan, hear their ranks.

    notebook ── plan, payload; stop, kill, end ──▶ joined machine
    notebook ◀── ready; begin, events, results, over ── joined machine

The plan goes down once, to machines that have proven their token. Each runs its ranks itself, as
this one does; torch's agents decide when they start (``launch.machines``). What their ranks say
arrives here as if they were local, so that curves, output, results and blame are of all ranks.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from notebook_accel.config.words import counted
from notebook_accel.errors import LaunchError, RunInterrupted, WorkerDied
from notebook_accel.events.model import Exited, Failed, Metrics, Progress, Returned, Started
from notebook_accel.launch import frames, likeness
from notebook_accel.launch.frames import Channel, Token
from notebook_accel.launch.memory import anonymous_file
from notebook_accel.launch.seat import Lane
from notebook_accel.launch.supervise import RankState
from notebook_accel.launch.waits import Wait

READY_S = 60.0  # from the plan to "ready": the other machine looks at its devices
MAX_READS = 16  # of 1 MB, from one machine each time round
MAX_REPORTS = 10


# ── one joined machine ────────────────────────────────────────────────────────────────────────


@dataclass
class Part:
    """What is known of one machine's ranks in one attempt."""

    ranks: list[RankState] = field(default_factory=list)
    over: str = ""  # how it ended there: "returned", "failed", "stopped", "gave way"
    error: BaseException | None = None  # what ended it, where that was no rank's failure

    def close(self) -> None:
        """Let the results go."""
        for state in self.ranks:
            os.close(state.lane.result)
        self.ranks.clear()


class Companion:
    """One machine that has joined."""

    def __init__(self, node: int, name: str, channel: Channel, num_local: int, words: str) -> None:
        self.node = node
        self.name = name
        self.num_local = num_local
        self.words = words
        self.lost = ""
        self.left = False
        self.parts: dict[int, Part] = {}
        self._channel = channel
        self._waiting: deque[Any] = deque()
        self._attempt = -1
        self._file = -1

    def __str__(self) -> str:
        return f"machine {self.node} ({self.name})"

    def tell(self, *message: Any) -> None:
        """Send it a word; that it is gone is found out by ``hear``, after its last words."""
        with contextlib.suppress(OSError):
            self._channel.send(message)

    def hear(self, attempt: int, show: Callable[[Any], None]) -> None:
        """Take what has come from it, up to the beginning of an attempt after ``attempt``.

        ``show`` is given the events of ``attempt``'s ranks.
        """
        for _ in range(MAX_READS):
            if not self._waiting and not self._read():
                return
            while self._waiting:
                message = self._waiting[0]
                if message[0] == "begin" and message[1] > attempt:
                    return
                self._waiting.popleft()
                self._take(message, attempt, show)

    def _read(self) -> bool:
        if self.left:
            return False
        try:
            come = self._channel.receive()
        except (OSError, LaunchError) as error:
            self._lose(error.what if isinstance(error, LaunchError) else str(error))
            return False
        self._waiting += [("piece", one) if isinstance(one, bytes) else one for one in come]
        return bool(come)

    def _lose(self, why: str) -> None:
        self.left = True
        part = self.parts.get(self._attempt)
        if part is None or not part.over:
            self.lost = why

    def _take(self, message: tuple[Any, ...], attempt: int, show: Callable[[Any], None]) -> None:
        word, *rest = message
        part = self.parts.get(self._attempt)
        if word == "begin":
            self._attempt, first = rest
            ranks = [_state(first + local) for local in range(self.num_local)]
            self.parts[self._attempt] = Part(ranks)
        elif word == "piece":
            os.write(self._file, rest[0])
        elif word == "bye":
            self._lose(rest[0])
        elif part is not None and word == "events":
            for event in rest[0]:
                _note(part, event)
                if self._attempt == attempt:
                    show(event)
        elif part is not None and word == "result":
            self._file = next(one.lane.result for one in part.ranks if one.rank == rest[0])
        elif part is not None and word == "over":
            part.over, part.error = rest

    def close(self) -> None:
        """Say that the run is over, and let go."""
        self.tell("end")
        self._channel.close()
        for part in self.parts.values():
            part.close()


def _state(rank: int) -> RankState:
    return RankState(Lane(rank, -1, -1, -1, anonymous_file("result"), -1), Wait(rank))


def _note(part: Part, event: Any) -> None:
    """Keep of an event what the verdict needs; ``order`` is set where all ranks are known."""
    state = next((one for one in part.ranks if one.rank == event.rank), None)
    if state is None:
        return
    if isinstance(event, Started):
        state.started = True
    elif isinstance(event, (Metrics, Progress)):
        step = event.step if isinstance(event, Progress) else event.points[-1][1]
        state.last_step = max(state.last_step, step)
    elif isinstance(event, Returned):
        state.returned = event
    elif isinstance(event, Failed):
        state.failed = event
        state.order = -1
    elif isinstance(event, Exited):
        state.code, state.we_killed = event.code, event.by_us
        if not state.reported and not event.by_us:
            state.order = -1


# ── waiting for them ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Invitation:
    """Whom to wait for, for how long, and what they are handed.

    ``plan`` makes the plan of the machine with a number; ``payload`` is the packed call.
    """

    num_machines: int
    wait_s: float
    plan: Callable[[int], dict[str, Any]]
    payload: memoryview


class Gate:
    """The listening socket at which other machines prove their tokens."""

    def __init__(self, listener: socket.socket, invitation: Invitation) -> None:
        until = time.monotonic() + invitation.wait_s
        self.tokens = [Token(frames.new_token(), until) for _ in range(invitation.num_machines - 1)]
        self._listener = listener
        self._invitation = invitation
        self._until = until
        self._num_refused = 0

    def wait(self, interrupted: Callable[[], bool]) -> list[Companion]:
        """Let the other machines in, until all are there.

        Errors: LaunchError when they do not come in time; RunInterrupted.
        """
        inside: list[Companion] = []
        try:
            while len(inside) < len(self.tokens):
                if interrupted():
                    raise RunInterrupted("the launch was stopped while it waited for machines")
                if time.monotonic() > self._until:
                    raise self._too_late(inside)
                if select.select([self._listener], [], [], 0.1)[0]:
                    sock, (host, *_) = self._listener.accept()
                    companion = self._meet(sock, str(host), len(inside) + 1)
                    inside += [companion] if companion is not None else []
        except BaseException:
            for one in inside:
                one.close()
            raise
        return inside

    def _meet(self, sock: socket.socket, host: str, node: int) -> Companion | None:
        """Let one machine in and hand it the plan, or say why not."""
        mine = likeness.facts()
        try:
            channel, token, theirs = frames.admit(
                sock, self.tokens, mine, lambda facts: likeness.objection(mine, facts)
            )
            name = f"{theirs.get('name')}, {host}"
            companion = self._hand_over(channel, name, node)
        except (frames.Unwelcome, LaunchError, OSError, ValueError) as reason:
            sock.close()
            self._report(host, str(getattr(reason, "what", reason)))
            return None
        token.used = True
        print(f"{companion} has joined: {companion.words}")
        return companion

    def _hand_over(self, channel: Channel, name: str, node: int) -> Companion:
        channel.send(("plan", self._invitation.plan(node), len(self._invitation.payload)))
        channel.send_bytes(self._invitation.payload)
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            for word, *rest in channel.receive(0.1):
                if word == "ready":
                    return Companion(node, name, channel, *rest)
                raise frames.Unwelcome(f"it cannot take part: {rest[0]}")
        raise frames.Unwelcome(f"it did not answer within {READY_S:.0f} s")

    def _report(self, host: str, why: str) -> None:
        self._num_refused += 1
        if self._num_refused <= MAX_REPORTS:
            more = "; more of them are not told" if self._num_refused == MAX_REPORTS else ""
            print(f"note: {host} was not let in: {why}{more}")

    def _too_late(self, inside: list[Companion]) -> LaunchError:
        wanted = counted(len(self.tokens), "other machine")
        return LaunchError(
            f"{len(inside)} of {wanted} joined within {self._invitation.wait_s:g} s",
            "the run begins when all machines are there; its tokens have expired",
            "run the cell again, then the join line on the other machines; "
            'rdzv_conf={"join_timeout": seconds} waits longer',
        )


class Company:
    """The machines that have joined."""

    def __init__(self, members: list[Companion]) -> None:
        self.members = members

    @property
    def words(self) -> list[str]:
        """What each of them trains on."""
        return [one.words for one in self.members]

    def hear(self, attempt: int, show: Callable[[Any], None] = lambda event: None) -> None:
        """Take what has come from all of them."""
        for one in self.members:
            one.hear(attempt, show)

    def tell(self, *message: Any) -> None:
        """Send all of them a word."""
        for one in self.members:
            one.tell(*message)

    def part(self, member: Companion, attempt: int) -> Part:
        """Give what is known of a member's ranks in an attempt."""
        return member.parts.get(attempt) or Part()

    def parts(self, attempt: int) -> list[Part]:
        """Give what is known of all their ranks in an attempt."""
        return [self.part(one, attempt) for one in self.members]

    def errors(self, attempt: int) -> list[BaseException]:
        """Give what ended an attempt on other machines, where that was no rank's failure."""
        return [part.error for part in self.parts(attempt) if part.error is not None]

    def stopper(self, attempt: int) -> Companion | None:
        """Give the machine on which somebody stopped an attempt."""
        stopped = (one for one in self.members if self.part(one, attempt).over == "stopped")
        return next(stopped, None)

    def lost(self) -> Companion | None:
        """Give the first machine that was lost."""
        return next((one for one in self.members if one.lost), None)

    def gone(self) -> WorkerDied | None:
        """Make the error of a machine that was lost, if one was."""
        one = self.lost()
        if one is None:
            return None
        ranks = [state for part in one.parts.values() for state in part.ranks]
        first = ranks[-one.num_local].rank if ranks else -1
        step = max((state.last_step for state in ranks), default=0)
        return WorkerDied(
            f"{one} was lost, " + (f"after step {step}" if step else "before its first step"),
            f"{one.lost}: the joined command or its machine ended, or the network did",
            "look there; run the cell again, and the join line with a new token",
            rank=first,
        )

    def close(self) -> None:
        """Say to all that the run is over."""
        for one in self.members:
            one.close()

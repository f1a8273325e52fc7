"""The notebook's part of a run that other machines have joined.

Its attempt is of all ranks: those of this machine are watched as ever, those of the others are
heard (``launch.gathering``). It ends when all have ended, by the same verdict as on one machine.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from notebook_accel.config.words import counted
from notebook_accel.errors import ConfigError
from notebook_accel.events.model import Lost
from notebook_accel.events.sinks import Sink
from notebook_accel.launch import addresses, elastic, machines, start
from notebook_accel.launch.attempts import equip
from notebook_accel.launch.elastic import Agent, Meeting, Start
from notebook_accel.launch.gathering import Company, Gate, Invitation
from notebook_accel.launch.handle import Run
from notebook_accel.launch.memory import map_privately
from notebook_accel.launch.result import RunResult
from notebook_accel.launch.run import Attempt, Interrupts, Order
from notebook_accel.launch.supervise import FOLD_S, ROOT_CAUSE_S, Ending, RankState, Supervisor

WORD_S = 3.0  # after the ranks here have ended: for the others to say why
MEET_S = 120.0  # from the last machine's joining to the first start
_SECRET = "notebook_accel.ui.secret"


def lead(
    meeting: Meeting,
    make_order: Callable[[], Order],
    make_sinks: Callable[[int, int], list[Sink]],
    handle: Run | None,
    device: Any,
    start_method: str,
) -> RunResult:
    """Wait for the other machines to join, and run with them.

    ``meeting`` has the address and port to join at. ``device`` and ``start_method`` are as asked:
    each machine finds its own.

    Errors: as ``machines.together``; ConfigError when the port is taken; LaunchError when the
        machines do not join in time.
    """
    with contextlib.ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        gate = stack.enter_context(machines.listen(meeting.host, meeting.port))
        served = stack.enter_context(machines.listen(meeting.host, 0))
        wait_s = float(meeting.conf.get("join_timeout", elastic.JOIN_S))
        meeting = replace(
            meeting,
            port=served.getsockname()[1],
            run_id=secrets.token_hex(8),
            conf={**meeting.conf, "join_timeout": int(wait_s + MEET_S)},
        )
        agent = Agent(machines.seen_from_here(meeting, served), served)
        stack.callback(agent.close)
        asked = make_order()
        payload, _ = start.pack(asked.job)
        stack.callback(os.close, payload)

        def plan(node: int) -> dict[str, Any]:
            return {
                "meeting": asdict(replace(meeting, node_rank=node)),
                "device": device,
                "kind": asked.plan.placements[0].device.partition(":")[0],
                "start_method": start_method,
                "settings": asked.settings,
                "env": asked.env,
            }

        def interrupted() -> bool:
            return interrupts.count > 0 or (handle is not None and handle.asked)

        invitation = Invitation(meeting.num_nodes, wait_s, plan, map_privately(payload))
        company = _gather(Gate(gate, invitation), gate.getsockname()[1], meeting, interrupted)
        stack.callback(company.close)
        gate.close()
        words = machines.together_words([asked.plan.device_words, *company.words])
        order = replace(
            asked,
            plan=replace(asked.plan, device_words=words),
            env={**machines.through(meeting), **asked.env},
            gathers=True,
        )
        newest = -1

        def attempt(word: Start) -> Attempt:
            nonlocal newest
            newest = word.attempt
            is_last = newest >= meeting.max_restarts
            made = Lead(machines.placed(order, word), interrupts, company, newest, is_last)
            equip(made, make_sinks(0, word.size), word.size, handle)
            return made

        def hear() -> None:
            company.hear(newest)
            if (gone := company.gone()) is not None:
                raise gone

        return machines.together(agent, attempt, interrupted, hear)


def _gather(gate: Gate, port: int, meeting: Meeting, interrupted: Callable[[], bool]) -> Company:
    """Show the line and the tokens, and wait for the machines."""
    count = len(gate.tokens)
    trusted = "" if addresses.is_loopback(meeting.host) else " --trusted-network"
    print(
        f"Waiting for {counted(count, 'other machine')}. Run there:\n"
        f"    notebook-accel join {meeting.host}:{port}{trusted}\n"
        f"It asks for {'a' if count > 1 else 'the'} token, which lets one machine in, once.",
        flush=True,
    )
    hide = importlib.import_module(_SECRET).show([token.text for token in gate.tokens])
    try:
        return Company(gate.wait(interrupted))
    finally:
        hide()


def check(meeting: Meeting, trusted_network: bool) -> None:
    """Refuse a call with ``join=True`` that cannot be meant.

    Errors: ConfigError.
    """
    if meeting.num_nodes < 2:
        raise ConfigError(
            f"join=True with num_nodes={meeting.num_nodes}",
            "num_nodes counts this machine and those that join it",
            "write num_nodes=2 for one other machine",
        )
    if meeting.node_rank or meeting.backend != "static":
        wrong = f"rdzv_backend={meeting.backend!r}"
        raise ConfigError(
            f"join=True with {f'node_rank={meeting.node_rank}' if meeting.node_rank else wrong}",
            "the notebook that is joined is machine 0, and numbers the others as they come",
            "leave it out",
        )
    check_address(meeting.host, trusted_network)


def check_address(host: str, trusted_network: bool) -> None:
    """Refuse an address at which others could speak to the ranks, unless they are trusted.

    Errors: ConfigError.
    """
    if trusted_network or addresses.is_loopback(host):
        return
    raise ConfigError(
        f"{host} is not a loopback address, so the ranks would talk over a network",
        "joining is authenticated, but the ranks' own connections (torch's store, gloo, nccl) are "
        "neither authenticated nor encrypted: whoever reaches them can read and change the run",
        "where you trust everybody who can reach that address (a private network, a VPN, "
        "WireGuard, ssh -w), say so on both sides: trusted_network=True, --trusted-network",
    )


class Lead(Attempt):
    """The notebook's attempt: its own ranks, and the word of those that joined."""

    def __init__(
        self, order: Order, interrupts: Interrupts, company: Company, number: int, is_last: bool
    ) -> None:
        super().__init__(order, interrupts, is_recorded=True)
        self._company = company
        self._number = number
        self._is_last = is_last
        self._told: list[str] = []
        self._give_up_at = float("inf")
        self._num_troubles = 0
        self._told_lost = False
        self.add_sinks([_Ear(self.hear)])

    def hear(self) -> None:
        """Hear the other machines, and pass on what is asked of the run."""
        supervisor = self._supervisor
        assert supervisor is not None
        self._company.hear(self._number, supervisor.emit)
        self._count_troubles(supervisor)
        lost = self._company.lost()
        if lost is not None and not self._told_lost:
            self._told_lost = True
            supervisor.emit(Lost(str(lost)))
        ending = supervisor.ending
        trouble = lost is not None or any(
            part.over == "failed" for part in self._company.parts(self._number)
        )
        if ending is None and (trouble or self._num_troubles):
            wait_s = ROOT_CAUSE_S if self._only_connections_broke(supervisor) else FOLD_S
            supervisor.ending = Ending("failure", time.monotonic() + wait_s)
        elif ending is None and (who := self._company.stopper(self._number)) is not None:
            print(f"note: the run was stopped on {who}")
            supervisor.stop()
        elif ending is not None and not self.gives_way:
            self._pass_on(ending)

    def _pass_on(self, ending: Ending) -> None:
        now = time.monotonic()
        if ending.reason == "interrupt":
            self._tell("stop")
            over = now >= ending.kill_at
        else:  # after a failure with restarts left, torch's agents end the others
            over = now >= ending.terminate_at and (self._is_last or ending.reason != "failure")
        if over:
            self._tell("kill")

    def _tell(self, word: str) -> None:
        if word not in self._told:
            self._told.append(word)
            self._company.tell(word, self._number)

    def _count_troubles(self, supervisor: Supervisor) -> None:
        """Give each new failure of another machine its place among all."""
        for part in self._company.parts(self._number):
            for state in part.ranks:
                if state.order < 0:
                    self._num_troubles += 1
                    state.order = 1 + max(0, *(one.order for one in self._ranks(supervisor)))

    def _done(self, supervisor: Supervisor) -> bool:
        """Whether all ranks have ended; after a failure the others are not waited for long."""
        if not supervisor.done:
            return False
        if all(part.over for part in self._company.parts(self._number)) or self.gives_way:
            return True
        now = time.monotonic()
        if supervisor.ending is not None and self._give_up_at == float("inf"):
            self._give_up_at = now + WORD_S
        return now >= self._give_up_at or self._company.gone() is not None

    def _ranks(self, supervisor: Supervisor) -> list[RankState]:
        others = [state for part in self._company.parts(self._number) for state in part.ranks]
        return [*supervisor.ranks, *others]

    def _error(self, reason: str, supervisor: Supervisor) -> BaseException:
        if reason == "failure" and self._only_connections_broke(supervisor):
            for reason_there in (*self._company.errors(self._number), self._company.gone()):
                if reason_there is not None:
                    return reason_there
        return super()._error(reason, supervisor)

    def _only_connections_broke(self, supervisor: Supervisor) -> bool:
        troubled = [state for state in self._ranks(supervisor) if state.order]
        return all(state.failed is not None and state.failed.is_comm for state in troubled)


class _Ear(Sink):
    """A sink that does nothing but hear the other machines each time round."""

    def __init__(self, hear: Callable[[], None]) -> None:
        self._hear = hear

    def tick(self) -> None:
        self._hear()

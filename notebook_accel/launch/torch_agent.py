"""The agent of one machine: torch elastic's own, with the launcher's ranks for its workers.

It is torch's ``SimpleElasticAgent`` over torch's rendezvous, in a process of its own: only the
four hooks that torch leaves to others are ours, and they pass the word on to the launcher
(``launch.elastic``). Torch is imported here and nowhere else for it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from notebook_accel.launch import addresses, store
from notebook_accel.launch.elastic import (
    FAILED,
    JOIN_S,
    LEAVE_S,
    RUNNING,
    STOPPED,
    SUCCEEDED,
    End,
    Meeting,
    Start,
    Stop,
    Word,
)

STOP_S = 30.0  # for ranks that are to be started anew: to be gone
LATE_S = 1.0  # a failed machine tells the others that it is done, and does not wait for them
_CLOSE_S = 5
_ATTEMPTS = "notebook_accel/attempts"


def serve(link_fd: int, listener_fd: int = -1) -> None:
    """Be the agent of one machine until the run over all machines has ended."""
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else torch serves one more store
    link = socket.socket(fileno=link_fd)
    lines = link.makefile("r", encoding="utf-8")
    meeting = Meeting(**json.loads(lines.readline()))
    launcher = _Launcher(link, lines)
    from torch.distributed.elastic.agent.server.api import WorkerSpec

    end = End(True)
    handler = None
    try:
        handler = _handler(meeting, listener_fd)
        spec = WorkerSpec(
            role="default",
            local_world_size=meeting.num_local,
            rdzv_handler=handler,
            entrypoint="notebook_accel",
            max_restarts=meeting.max_restarts,
            monitor_interval=max(meeting.monitor_interval, 0.01),
        )
        end = _agent(spec, launcher, lambda group: _meet_at(group, meeting, listener_fd))
    except Exception as error:
        end = End(True, f"{type(error).__name__}: {error}")
    if end.failed and handler is not None:
        handler.shutdown()  # closes the rendezvous, so that no machine waits for this one
    launcher.say("end", end)
    time.sleep(LEAVE_S)  # the launcher closes the line before
    os._exit(0)


class _Launcher:
    """The agent's side of the line: what the launcher last said of its ranks."""

    def __init__(self, link: socket.socket, lines: Any) -> None:
        self._link = link
        self._lines = lines
        self._changed = threading.Condition()
        self._state = STOPPED
        self._attempt = -1
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._lines:
            said = json.loads(line)
            with self._changed:
                if said["attempt"] == self._attempt:  # a late word on an earlier start says nothing
                    self._state = said["state"]
                    self._changed.notify_all()
        os._exit(1)  # the launcher has gone, and with it its ranks

    def say(self, word: str, what: Word) -> None:
        self._link.sendall(json.dumps({"word": word, **dataclasses.asdict(what)}).encode() + b"\n")

    def start(self, what: Start) -> None:
        with self._changed:
            self._state, self._attempt = RUNNING, what.attempt
        self.say("start", what)

    def state(self) -> str:
        return self._state

    def stop(self) -> None:
        """Have the ranks ended, if they still run."""
        with self._changed:
            if self._state == RUNNING:
                self.say("stop", Stop())
                self._changed.wait_for(lambda: self._state != RUNNING, STOP_S)


def _handler(meeting: Meeting, listener_fd: int) -> Any:
    """Make torch's rendezvous over the store that machine 0 serves, or that c10d agrees on."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import (
        C10dRendezvousBackend,
        create_backend,
    )
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

    conf = {"close_timeout": _CLOSE_S, **meeting.conf}
    if "timeout" in conf:  # what torch's own static rendezvous takes
        conf.setdefault("join_timeout", int(conf["timeout"]))
    join_s = float(conf.get("join_timeout", JOIN_S))
    # Torch sorts machines by their address and gives ranks in this order; the address has no other
    # use here, for every rank is told where its store is.
    address = f"machine-{meeting.node_rank:06}" if meeting.backend == "static" else None
    parameters = RendezvousParameters(
        "c10d",
        f"{meeting.host}:{meeting.port}",
        meeting.run_id,
        meeting.num_nodes,
        meeting.num_nodes,
        address,
        **conf,
    )
    if meeting.backend == "c10d":
        backend, found = create_backend(parameters)
        return create_handler(found, backend, parameters)
    how: dict[str, Any] = {"timeout": timedelta(seconds=join_s), "wait_for_workers": False}
    if listener_fd >= 0:
        how |= {"is_master": True, "master_listen_fd": os.dup(listener_fd)}
    served = TCPStore(meeting.host, meeting.port, **how)
    return create_handler(served, C10dRendezvousBackend(served, meeting.run_id), parameters)


def _agent(spec: Any, launcher: _Launcher, meet_at: Callable[[Any], tuple[str, int, Any]]) -> End:
    """Run torch's agent, with the launcher's ranks for its workers, to the end.

    ``meet_at`` gives the address and port at which the ranks of one start meet, and what serves
    it if it is this machine.
    """
    from torch.distributed.elastic.agent.server.api import (
        RunResult,
        SimpleElasticAgent,
        WorkerGroup,
        WorkerState,
    )

    states = {
        RUNNING: WorkerState.HEALTHY,
        SUCCEEDED: WorkerState.SUCCEEDED,
        FAILED: WorkerState.FAILED,
        STOPPED: WorkerState.FAILED,
    }

    class MachineAgent(SimpleElasticAgent):
        def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
            attempt = _number(worker_group)
            first = worker_group.workers[0]
            node = int(worker_group.group_rank or 0)
            host, port, self._served = meet_at(worker_group)
            launcher.start(Start(first.global_rank, first.world_size, node, attempt, host, port))
            return {one.local_rank: one.local_rank for one in worker_group.workers}

        def _stop_workers(self, worker_group: WorkerGroup, is_restart: bool = False) -> None:
            launcher.stop()

        def _shutdown(self, *args: Any, **kwargs: Any) -> None:
            launcher.stop()

        def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
            ranks = [one.global_rank for one in worker_group.workers]
            return RunResult(states[launcher.state()], dict.fromkeys(ranks))

        def arrive(self) -> None:
            """Let machines that have succeeded leave: this one will not come."""
            self._exit_barrier_timeout = LATE_S
            self._exit_barrier()  # type: ignore[no-untyped-call]

    agent = MachineAgent(spec)
    result = agent.run()
    failed = result is None or result.is_failed()
    if failed:
        agent.arrive()
    return End(failed)


def _number(worker_group: Any) -> int:
    """Count this start over the whole run, the same on all machines.

    torch counts restarts on each machine, and only of its own failures.
    """
    here = worker_group.store
    if worker_group.group_rank == 0:
        everywhere = getattr(here, "underlying_store", here)
        here.set("attempt", str(everywhere.add(_ATTEMPTS, 1) - 1))
    return int(here.get("attempt"))


def _meet_at(worker_group: Any, meeting: Meeting, listener_fd: int) -> tuple[str, int, Any]:
    """Serve a new store for the ranks of this start, on machine 0; tell all where it is.

    A store that ranks have used holds their old addresses, so no start shares one with another.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    fixed = meeting.host if meeting.backend == "static" else ""
    served = None
    if worker_group.group_rank == 0:
        bound = own = addresses.towards(meeting.host, meeting.port)
        if addresses.is_loopback(own) and not addresses.is_loopback(meeting.host):
            bound, own = "", socket.getfqdn()  # as torch would name it to the others
        if listener_fd >= 0:
            with socket.socket(fileno=os.dup(listener_fd)) as listener:
                bound = listener.getsockname()[0]
        listener = store.listen(bound, 0)
        port = listener.getsockname()[1]
        how: dict[str, Any] = {"is_master": True, "wait_for_workers": False}
        here = fixed or bound or "127.0.0.1"
        served = TCPStore(here, port, master_listen_fd=listener.detach(), **how)
        worker_group.store.set("ranks", f"{own} {port}")
    host, port = worker_group.store.get("ranks").decode().split()
    return fixed or host, int(port), served

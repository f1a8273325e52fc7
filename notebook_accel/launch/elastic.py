"""Several machines meet: torch elastic's rendezvous and agent, in a process of their own.

One agent stands beside the notebook (or the joined command) on every machine. It is torch's
``SimpleElasticAgent``: torch decides when the machines are together, which ranks each of them
has, when all start again and when the run is over. Only its four hooks are ours, and they talk
to the process that holds the ranks:

    agent ── start, stop, end ──▶ launcher      JSON, one object a line
    agent ◀── how its ranks are ── launcher

The process that launches has no thread, store or signal handler of torch's, and can be
interrupted while its agent waits for other machines. Either end of the line that closes means
that the other one has ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from multiprocess import spawn as interpreter

from notebook_accel.errors import LaunchError
from notebook_accel.launch.memory import anonymous_file

JOIN_S = 600.0  # as in torch elastic: how long one machine waits for the others
STOP_S = 30.0  # for ranks that are to be started anew: to be gone
LATE_S = 1.0  # a failed machine tells the others that it is done, and does not wait for them
LEAVE_S = 5.0
_CLOSE_S = 5
_ATTEMPTS = "notebook_accel/attempts"

RUNNING, SUCCEEDED, FAILED, STOPPED = "RUNNING", "SUCCEEDED", "FAILED", "STOPPED"


@dataclass(frozen=True)
class Meeting:
    """Where and how machines meet.

    host, port: of the store through which they meet, and later their ranks.
    backend: "static": machine 0 serves the store and machines are numbered by ``node_rank``;
        "c10d": torch finds out who serves it and numbers the machines.
    num_local: ranks on this machine.
    conf: what torch elastic calls the rendezvous configuration (``join_timeout``...).
    """

    host: str
    port: int
    run_id: str
    num_nodes: int
    node_rank: int
    num_local: int
    max_restarts: int = 0
    backend: str = "static"
    monitor_interval: float = 0.1
    conf: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Start:
    """The machines are together: this one's ranks begin at ``first_rank`` of ``size``."""

    first_rank: int
    size: int
    node: int
    attempt: int
    host: str
    port: int


@dataclass(frozen=True)
class Stop:
    """The ranks of this machine are to be ended, for all will start again."""


@dataclass(frozen=True)
class End:
    """The run over all machines has ended; ``why`` is torch's reason if it was no rank's."""

    failed: bool
    why: str = ""


Word = Start | Stop | End
_KINDS: dict[str, type[Word]] = {"start": Start, "stop": Stop, "end": End}


class Agent:
    """The launcher's hold on the agent of this machine.

    ``listener`` is the listening socket on which machine 0's agent serves the store.
    """

    def __init__(self, meeting: Meeting, listener: socket.socket | None = None) -> None:
        ours, theirs = socket.socketpair()
        self._link = ours
        self._rest = b""
        self._log = anonymous_file("agent-log")
        fds = [theirs.fileno(), *([listener.fileno()] if listener is not None else [])]
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            f"from notebook_accel.launch.elastic import serve; serve{tuple(fds)!r}"
        )
        self._process = subprocess.Popen(
            [interpreter.get_executable(), "-c", code],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            start_new_session=True,
        )
        theirs.close()
        self._say(dataclasses.asdict(meeting))

    @property
    def pid(self) -> int:
        """The agent's process id."""
        return self._process.pid

    def fileno(self) -> int:
        """The descriptor that is readable when there may be a word."""
        return self._link.fileno()

    def tell(self, state: str) -> None:
        """Say how this machine's ranks are."""
        self._say({"state": state})

    def heard(self, timeout_s: float = 0.0) -> Word | None:
        """Give the agent's next word, or None if none comes within ``timeout_s``."""
        if b"\n" not in self._rest and select.select([self._link], [], [], timeout_s)[0]:
            data = self._link.recv(1 << 16)
            if not data:
                return End(True, f"its agent ended; {self._last_words()}")
            self._rest += data
        line, mark, rest = self._rest.partition(b"\n")
        if not mark:
            return None
        self._rest = rest
        message = json.loads(line)
        return _KINDS[message.pop("word")](**message)

    def close(self) -> None:
        """End the agent."""
        self._link.close()
        try:
            self._process.wait(LATE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._log)

    def _say(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # then heard() tells it
            self._link.sendall(json.dumps(message).encode() + b"\n")

    def _last_words(self) -> str:
        size = os.fstat(self._log).st_size
        said = os.pread(self._log, 2000, max(0, size - 2000)).decode("utf-8", "replace").strip()
        return f"its last words: {said or '(none)'}"


def apart(end: End) -> LaunchError:
    """Make the error of machines that did not come or stay together."""
    if "RendezvousTimeout" in end.why:
        return LaunchError(
            "not all machines came to the meeting in time",
            f"every machine must run the same cell, with the same num_nodes; torch: {end.why}",
            "start the cell on all of them within join_timeout (rdzv_conf, 600 s by default)",
        )
    return LaunchError(
        "the machines lost each other",
        f"what torch's rendezvous saw: {end.why or 'it was closed'}",
        "look at the other machines: one of them has ended or cannot be reached",
    )


# ── the agent's process ───────────────────────────────────────────────────────────────────────


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
        end = _agent(spec, meeting, launcher)
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
        self._state = RUNNING
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._lines:
            with self._changed:
                self._state = json.loads(line)["state"]
                self._changed.notify_all()
        os._exit(1)  # the launcher has gone, and with it its ranks

    def say(self, word: str, what: Word) -> None:
        self._link.sendall(json.dumps({"word": word, **dataclasses.asdict(what)}).encode() + b"\n")

    def start(self, what: Start) -> None:
        self._state = RUNNING
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
        backend, store = create_backend(parameters)
        return create_handler(store, backend, parameters)
    how: dict[str, Any] = {"timeout": timedelta(seconds=join_s), "wait_for_workers": False}
    if listener_fd >= 0:
        how |= {"is_master": True, "master_listen_fd": listener_fd}
    store = TCPStore(meeting.host, meeting.port, **how)
    return create_handler(store, C10dRendezvousBackend(store, meeting.run_id), parameters)


def _agent(spec: Any, meeting: Meeting, launcher: _Launcher) -> End:
    """Run torch's agent, with the launcher's ranks for its workers, to the end."""
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
            where = meeting.host, meeting.port
            launcher.start(Start(first.global_rank, first.world_size, node, attempt, *where))
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

    torch counts restarts on each machine, and only of its own failures; the ranks keep what they
    say to each other apart by this number, so it must be one.
    """
    store = worker_group.store
    if worker_group.group_rank == 0:
        everywhere = getattr(store, "underlying_store", store)
        store.set("attempt", str(everywhere.add(_ATTEMPTS, 1) - 1))
    return int(store.get("attempt"))


def wait(
    agent: Agent, interrupted: Callable[[], bool], idle: Callable[[], None] = lambda: None
) -> Start | End | None:
    """Wait until the machines start or the run has ended; None when ``interrupted``.

    ``idle`` is called now and then.
    """
    while not interrupted():
        word = agent.heard(0.05)
        if isinstance(word, (Start, End)):
            return word
        idle()
    return None


def leave(agent: Agent) -> None:
    """Let an agent go whose ranks have been stopped: the other machines are told first."""
    agent.tell(SUCCEEDED)
    deadline = time.monotonic() + LEAVE_S
    while time.monotonic() < deadline and not isinstance(agent.heard(0.05), End):
        pass
    agent.close()

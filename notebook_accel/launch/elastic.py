"""Several machines meet: the launcher's side of torch elastic's agent.

One agent (``launch.torch_agent``) stands beside the notebook, or the joined command, on every
machine. Torch decides in it when the machines are together, which ranks each of them has, when
all start again and when the run is over; it talks to the process that holds the ranks:

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
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from multiprocess import spawn as interpreter

from notebook_accel.errors import LaunchError
from notebook_accel.launch.memory import anonymous_file

JOIN_S = 600.0  # as in torch elastic: how long one machine waits for the others
CLOSE_S = 1.0
LEAVE_S = 5.0

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

    ``listener`` is the listening socket on which machine 0's agent serves the store; ``place`` is
    where the machines meet, as the person said it.
    """

    def __init__(
        self, meeting: Meeting, listener: socket.socket | None = None, place: str = ""
    ) -> None:
        self.place = place or f"{meeting.host}:{meeting.port}"
        ours, theirs = socket.socketpair()
        self._link = ours
        self._rest = b""
        self._attempt = -1
        self._log = anonymous_file("agent-log")
        fds = [theirs.fileno(), *([listener.fileno()] if listener is not None else [])]
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            f"from notebook_accel.launch.torch_agent import serve; serve{tuple(fds)!r}"
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
        """Say how this machine's ranks are, in the newest start that was heard of."""
        self._say({"state": state, "attempt": self._attempt})

    def heard(self, timeout_s: float = 0.0) -> Word | None:
        """Give the agent's next word, or None if none comes within ``timeout_s``."""
        if b"\n" not in self._rest and select.select([self._link], [], [], timeout_s)[0]:
            data = b""
            with contextlib.suppress(ConnectionResetError):
                data = self._link.recv(1 << 16)
            if not data:
                return End(True, f"its agent ended; {self._last_words()}")
            self._rest += data
        line, mark, rest = self._rest.partition(b"\n")
        if not mark:
            return None
        self._rest = rest
        message = json.loads(line)
        word = _KINDS[message.pop("word")](**message)
        self._attempt = word.attempt if isinstance(word, Start) else self._attempt
        return word

    def close(self) -> None:
        """End the agent, first asking it to: it sees the line close."""
        self._link.close()
        try:
            self._process.wait(CLOSE_S)
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


def apart(end: End, place: str) -> LaunchError:
    """Make the error of machines that did not come or stay together at ``place``."""
    if "RendezvousTimeout" in end.why:
        return LaunchError(
            f"not all machines came to the meeting at {place} in time",
            "every machine must run the same cell, with the same num_nodes and address; torch: "
            + end.why.strip(": "),
            "start the cell on all of them within join_timeout (rdzv_conf, 600 s by default)",
        )
    return LaunchError(
        "the machines lost each other",
        f"what torch's rendezvous saw: {end.why or 'it was closed'}",
        "look at the other machines: one of them has ended or cannot be reached",
    )


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

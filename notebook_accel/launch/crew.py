"""The processes of one run as the kernel holds them: who ended how, whom to signal, when to reap.

Two kinds: children of this process (fork, spawn) and children of the forkserver. Both are reaped
only by ``release``, after the guard is gone, so that no process id is given to somebody else
while anybody might still signal it.
"""

from __future__ import annotations

import os
import signal
from typing import Protocol


class Crew(Protocol):
    """The processes of one run."""

    def fds(self) -> list[int]:
        """Descriptors that become readable when there is something for ``news``."""
        ...

    def pid(self, rank: int) -> int | None:
        """The process id of ``rank``, or None if it is not known yet."""
        ...

    def news(self) -> list[tuple[int, int]]:
        """(rank, exit code) of ranks whose end is new; negative codes are signals."""
        ...

    def release(self) -> None:
        """Reap every process, which must have ended."""
        ...


class Children:
    """A crew of this process's own children."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        has_pidfds = hasattr(os, "pidfd_open")  # else polling finds who has ended
        self._pidfds = [os.pidfd_open(pid) for pid in pids] if has_pidfds else []
        self._watched = set(range(len(pids)))  # those not known to have ended

    def fds(self) -> list[int]:
        """Give the pidfds of those not known to have ended; they stay open until ``release``."""
        return [fd for rank, fd in enumerate(self._pidfds) if rank in self._watched]

    def pid(self, rank: int) -> int | None:
        """Give the process id of ``rank``."""
        return self._pids[rank]

    def news(self) -> list[tuple[int, int]]:
        """Look, without reaping, who has ended since the last look."""
        ended = []
        for rank in sorted(self._watched):
            code = peek(self._pids[rank])
            if code is not None:
                ended.append((rank, code))
                self._watched.discard(rank)
        return ended

    def release(self) -> None:
        """Reap every child."""
        while self._pidfds:
            os.close(self._pidfds.pop())
        for pid in self._pids:
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                continue  # somebody's own SIGCHLD handling was faster


def peek(pid: int) -> int | None:
    """Give the exit code of child ``pid`` if it has ended, and leave it a zombie."""
    try:
        seen = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0
    if seen is None:
        return None
    return seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status


def signal_group(pid: int | None, number: signal.Signals) -> None:
    """Send a signal to the process group that ``pid`` leads, as far as it still exists."""
    if pid is None:
        return
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def signal_process(pid: int | None, number: signal.Signals) -> None:
    """Send a signal to one process, as far as it still exists."""
    if pid is None:
        return
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return

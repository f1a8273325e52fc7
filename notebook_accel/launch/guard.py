"""The guard of one run: kills the workers' process groups when the kernel vanishes.

Started fresh (not forked) as a tiny program, so that it holds none of the kernel's memory, in its
own session, so that nothing aimed at the kernel's group reaches it. It reads one process group a
line from its stdin. End of input, or the kernel's end seen through a pidfd, means that nobody is
left to clean up: SIGKILL to every group, grandchildren included. The kernel dismisses it by
killing it, before it reaps any worker, so that no number can have been given to somebody else.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys


class Guard:
    """The kernel's hold on one guard process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # its start must not hold up the workers'; once they are gone it has the cores
            os.setpriority(os.PRIO_PROCESS, self._process.pid, 19)
        assert self._process.stdin is not None
        self.fd = self._process.stdin.fileno()

    @property
    def pid(self) -> int:
        """The guard's process id."""
        return self._process.pid

    def watch(self, group: int) -> None:
        """Add one process group to what the guard would kill."""
        try:
            os.write(self.fd, f"{group}\n".encode())
        except BrokenPipeError:  # somebody killed the guard; the run goes on without it
            return

    def dismiss(self) -> None:
        """End the guard; must come before any worker is reaped."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            return


def main(kernel: int) -> None:
    """Wait for the kernel's end and kill what it leaves."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    poller = select.poll()
    poller.register(0, select.POLLIN | select.POLLHUP)
    if hasattr(os, "pidfd_open"):
        try:
            poller.register(os.pidfd_open(kernel), select.POLLIN)
        except ProcessLookupError:
            pass  # already gone: end of input says the same
    gone = os.getppid() != kernel
    rest = b""
    while not gone:
        for fd, _ in poller.poll():
            data = os.read(0, 4096) if fd == 0 else b""
            gone = gone or not data
            rest += data
    os.set_blocking(0, False)
    try:
        rest += os.read(0, 1 << 16)
    except BlockingIOError:
        pass  # another process still holds the pipe, but everything written was read
    for group in map(int, rest.split()):
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


if __name__ == "__main__":
    main(int(sys.argv[1]))

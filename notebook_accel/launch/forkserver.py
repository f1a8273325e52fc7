"""The forkserver: a clean process that has imported torch and forks workers on request.

It never opened a device and never ran a parallel region, so its children may do both, whatever
the kernel did before. One serves a kernel for its whole life, in its own session so that nothing
aimed at the kernel's group reaches it; it ends with the kernel or by ``shutdown()``.

    kernel ── control ──▶ server        one message a run: the run's own connection
    kernel ◀─ run ──────▶ server        seats down (with descriptors); pids and exit codes up

A run's connection that closes means that nobody wants its workers any more: they are killed.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from typing import Any

from multiprocess import spawn as interpreter

from notebook_accel.errors import LaunchError
from notebook_accel.launch import crew
from notebook_accel.launch.memory import anonymous_file
from notebook_accel.launch.seat import Seat

_LENGTH = struct.Struct("!I")
MAX_FDS = 16


def send(sock: socket.socket, message: Any, fds: list[int] | None = None) -> None:
    """Send one message, with descriptors; waits until all of it is taken."""
    body = pickle.dumps(message)
    head = _LENGTH.pack(len(body))
    if fds:
        socket.send_fds(sock, [head], fds)
        sock.sendall(body)
    else:
        sock.sendall(head + body)


def receive(sock: socket.socket) -> tuple[Any, list[int]] | None:
    """Receive one message and its descriptors; None when the other end is closed."""
    head, fds, _, _ = socket.recv_fds(sock, _LENGTH.size, MAX_FDS)
    while 0 < len(head) < _LENGTH.size:
        head += sock.recv(_LENGTH.size - len(head))
    if not head:
        return None
    left = _LENGTH.unpack(head)[0]
    parts = []
    while left:
        part = sock.recv(min(left, 1 << 20))
        if not part:
            return None
        parts.append(part)
        left -= len(part)
    return pickle.loads(b"".join(parts)), list(fds)


# ── the kernel's side ─────────────────────────────────────────────────────────────────────────


class ForkServer:
    """The kernel's hold on its forkserver process."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        ours, theirs = socket.socketpair()
        self._control = ours
        self._log = anonymous_file("forkserver-log")
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            "from notebook_accel.launch.forkserver import serve; "
            f"serve({theirs.fileno()}, {os.getpid()}, {'ipykernel' in sys.modules})"
        )
        self._process = subprocess.Popen(
            [interpreter.get_executable(), "-c", code],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            start_new_session=True,
        )
        theirs.close()

    def alive(self) -> bool:
        """True if the server can take a run."""
        return self.owner == os.getpid() and self._process.poll() is None

    def open_run(self) -> socket.socket:
        """Give a new run's connection; waits for a starting server only when messages need it."""
        ours, theirs = socket.socketpair()
        try:
            send(self._control, "run", [theirs.fileno()])
        except (BrokenPipeError, ConnectionResetError):
            ours.close()
            raise self.died() from None
        finally:
            theirs.close()
        return ours

    def died(self) -> LaunchError:
        """Explain that the server is gone, with what it said last; its connections close first."""
        code = self._wait()
        size = os.fstat(self._log).st_size
        said = os.pread(self._log, 2000, max(0, size - 2000)).decode("utf-8", "replace").strip()
        return LaunchError(
            f"the forkserver ended (exit code {code})",
            f"its last words: {said or '(none)'}",
            "run the cell again: a new one will be started",
        )

    def close(self) -> None:
        """End the server, and with it whatever it still runs."""
        self._control.close()
        self._wait()
        os.close(self._log)

    def _wait(self) -> int:
        """Let the server end, and leave no trace of it among this process's children."""
        try:
            return self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


_server: ForkServer | None = None
_lock = threading.Lock()


def running() -> ForkServer:
    """Give this kernel's forkserver, started now if there is none. Its imports go on by itself."""
    global _server
    with _lock:
        if _server is None or not _server.alive():
            _server = ForkServer()
        return _server


def shutdown() -> None:
    """End the idle forkserver of this process, if one was started; the next launch starts another.

    Errors: none; it may be called at any time when no run is going on.
    """
    global _server
    with _lock:
        if _server is not None and _server.owner == os.getpid():
            _server.close()
        _server = None


class ServedCrew:
    """A crew whose processes are children of the forkserver."""

    def __init__(self, server: ForkServer, num_ranks: int) -> None:
        self._server = server
        self._connection = server.open_run()
        self._pids: dict[int, int] = {}
        self._alive = set(range(num_ranks))

    def start(self, seat: Seat, surroundings: dict[str, Any], payload: int) -> None:
        """Ask for the worker of ``seat``.

        Errors: LaunchError when the server has died.
        """
        try:
            send(self._connection, (seat, surroundings), [*seat.fds(), payload])
        except (BrokenPipeError, ConnectionResetError):
            raise self._server.died() from None

    def fds(self) -> list[int]:
        """Give the run's connection."""
        return [self._connection.fileno()]

    def pid(self, rank: int) -> int | None:
        """Give the process id of ``rank`` once the server has said it."""
        return self._pids.get(rank)

    def news(self) -> list[tuple[int, int]]:
        """Read what the server has said.

        Errors: LaunchError when the server has died, which takes its workers along.
        """
        ended = []
        while self._alive and select.select([self._connection], [], [], 0)[0]:
            try:
                received = receive(self._connection)
            except ConnectionResetError:
                received = None
            if received is None:
                self._alive.clear()
                raise self._server.died()
            kind, rank, number = received[0]
            if kind == "pid":
                self._pids[rank] = number
            else:
                ended.append((rank, number))
                self._alive.discard(rank)
        return ended

    def release(self) -> None:
        """Let the server reap what it has; it kills what still runs."""
        self._connection.close()


# ── the server's side ─────────────────────────────────────────────────────────────────────────


class _Run:
    """One run in the server: its connection and its children."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.pids: dict[int, int] = {}
        self.ended: set[int] = set()

    def report_ends(self) -> None:
        for rank, pid in self.pids.items():
            if rank not in self.ended and (code := crew.peek(pid)) is not None:
                self.ended.add(rank)
                try:
                    send(self.connection, ("exit", rank, code))
                except OSError:
                    return  # the kernel has let go of the run: its end of the line is closed

    def close(self) -> None:
        for pid in self.pids.values():
            crew.signal_group(pid, signal.SIGKILL)
        for pid in self.pids.values():
            os.waitpid(pid, 0)
        self.connection.close()


def serve(control_fd: int, kernel: int, in_notebook: bool) -> None:
    """Be the forkserver of process ``kernel`` until it ends or closes the control connection."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    from notebook_accel.launch import start

    start.warm(in_notebook)
    gc.collect()
    gc.freeze()  # so that no collection in a worker touches, and copies, what all share
    control = socket.socket(fileno=control_fd)
    kernel_fd = _watch(kernel)
    runs: list[_Run] = []
    while True:
        connections = {run.connection.fileno(): run for run in runs}
        waiting = [control.fileno(), wake_read, *kernel_fd, *connections]
        readable = select.select(waiting, [], [], 5.0)[0]
        if wake_read in readable:
            os.read(wake_read, 4096)
        for run in runs:
            run.report_ends()
        if control.fileno() in readable:
            message = receive(control)
            if message is None:
                break
            runs.append(_Run(socket.socket(fileno=message[1][0])))
        if any(fd in readable for fd in kernel_fd) or os.getppid() != kernel:
            break
        for fd, run in connections.items():
            if fd in readable and not _serve_run(run, runs, control, wake_read, wake_write):
                run.close()
                runs.remove(run)
    for run in runs:
        run.close()


def _watch(kernel: int) -> list[int]:
    if not hasattr(os, "pidfd_open"):
        return []
    try:
        return [os.pidfd_open(kernel)]
    except ProcessLookupError:
        return []


def _serve_run(
    run: _Run, runs: list[_Run], control: socket.socket, wake_read: int, wake_write: int
) -> bool:
    """Start one worker for ``run``; False when the kernel has let go of the run."""
    try:
        message = receive(run.connection)
    except ConnectionResetError:
        message = None
    if message is None:
        return False
    (seat, surroundings), fds = message
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        become_fresh_worker(seat, surroundings, fds, server, [wake_read, wake_write])
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    run.pids[seat.placement.local_rank] = pid
    for fd in fds:
        os.close(fd)
    try:
        os.setpgid(pid, pid)
    except (ProcessLookupError, PermissionError):
        pass  # it did so itself and is further along
    try:
        send(run.connection, ("pid", seat.placement.local_rank, pid))
    except OSError:
        return False
    return True


def become_fresh_worker(
    seat: Seat, surroundings: dict[str, Any], fds: list[int], parent: int, inherited: list[int]
) -> None:
    """Take the kernel's surroundings and enter the worker's door; does not return."""
    from dataclasses import replace

    from notebook_accel.launch import worker

    *own, payload = fds
    try:
        os.environ.clear()
        os.environ.update(surroundings["env"])
        sys.path[:] = surroundings["path"]
        sys.argv[:] = surroundings["argv"]
        os.chdir(surroundings["cwd"])
    except OSError as error:
        os.write(own[1], f"worker {seat.placement.rank}: {error}\n".encode())
        os._exit(1)
    seat = replace(seat.with_fds(own), parent=parent)
    worker.enter(seat, worker.fresh_call(payload), inherited)

"""What ties a new worker to the process it was forked from, and how it is cut.

The kernel's signals, its sockets and epolls, its event loop and exit functions: a fork inherits
all of them, and using one would reach into the kernel.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import select
import signal
import stat
import sys
import threading
from typing import Any

from notebook_accel.errors import StopRun

PR_SET_PDEATHSIG = 1
_EPOLL = "anon_inode:[eventpoll]"


def cut(parent: int, keep: list[int], inherited: list[int]) -> None:
    """Make this process its own, of all that it shares with the one it was forked from.

    ``keep`` are the descriptors that a worker works with, ``inherited`` those it must not hold.
    """
    if os.getpgid(0) != os.getpid():
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # DataLoader workers and subprocesses inherit it
    signal.signal(signal.SIGTERM, _stop_once)
    _let_children_die()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    _die_with_parent(parent)
    for fd in inherited:
        os.close(fd)
    _blind(set(keep))
    _forget_event_loop()
    _forget_exit_functions()


def _die_with_parent(parent: int) -> None:
    """Ask the system to kill this process when the thread that started it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # it ended between the fork and the line above


def _stop_once(number: int, frame: Any) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise StopRun("the run was stopped")


def _let_children_die() -> None:
    """Let processes that this one forks die of SIGTERM, from their first moment on.

    They would inherit the handler, and Python forgets a signal that reaches it while a new child
    is settling in: the pool that sent it would wait for ever.
    """
    held = threading.local()

    def hold() -> None:
        held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, held.mask)

    def reset() -> None:
        if signal.getsignal(signal.SIGTERM) is _stop_once:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        release()

    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=reset)


def _blind(keep: set[int]) -> None:
    """Point inherited sockets at nothing and let every epoll be one of our own, with nothing in it.

    A held listener would block a kernel's restart; an epoll is one object in both processes, and
    whoever removes a descriptor from it here makes the kernel deaf. Not closed: code in this
    process may still use such a number, and must not meet a new file.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd" if sys.platform == "linux" else "/dev/fd"):
        fd = int(name)
        try:
            if fd in keep:
                continue
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                os.dup2(null, fd)
            elif sys.platform == "linux" and os.readlink(f"/proc/self/fd/{fd}") == _EPOLL:
                with select.epoll() as empty:
                    os.dup2(empty.fileno(), fd, inheritable=False)
        except OSError:
            continue  # the listing's own descriptor, closed by now
    os.close(null)


def _forget_event_loop() -> None:
    """Let asyncio make a new loop here, as Python does itself from 3.12 on.

    The kernel's is in the middle of a cell. Who makes loops nest (``nest_asyncio``) would run it
    on here, with the cells that wait in it.
    """
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and sys.version_info < (3, 12):
        policy = asyncio.get_event_loop_policy()
        if hasattr(policy, "_local"):
            policy._local = policy._Local()


def _forget_exit_functions() -> None:
    """Drop exit functions of the process we were forked from; ours may be added from here on."""
    atexit._clear()
    processes = sys.modules.get("multiprocessing.util")
    if processes is not None:
        processes._finalizer_registry.clear()
        sys.modules["multiprocessing.process"]._children.clear()
        atexit.register(processes._exit_function)
    executors = sys.modules.get("concurrent.futures.thread")
    if executors is not None:  # when forked from such a thread, it would wait for itself
        executors._threads_queues.clear()

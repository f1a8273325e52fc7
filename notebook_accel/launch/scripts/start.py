"""From a decision to running processes: this process becomes the program, or watches it."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping

from notebook_accel.errors import LaunchError
from notebook_accel.launch.scripts import way as ways
from notebook_accel.launch.scripts.program import does_not_start
from notebook_accel.launch.scripts.way import Way


def start(way: Way, env: Mapping[str, str], say: Callable[[str], None]) -> int:
    """Carry out ``way`` in the environment ``env``; give the exit code, if this process goes on.

    ``say`` writes a line about the run.

    Errors: LaunchError when the program is not there.
    """
    env = way.environment(env)
    if way.who == ways.SIDE_BY_SIDE:
        from notebook_accel.launch.scripts import side_by_side

        with reserved(way.port) as port:
            if way.port not in (None, port):
                say(f"note: port {way.port} is another launch's: a free one was chosen")
            envs = [
                {**env, **ways.rank_environment(rank, way.num_ranks, port)}
                for rank in range(way.num_ranks)
            ]
            return side_by_side.run(way.words, envs, say)
    program = shutil.which(way.words[0], path=env.get("PATH"))
    if program is None:
        raise _not_there(way)
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and that is inherited
    try:
        os.execve(program, list(way.words), env)
    except OSError as error:
        raise does_not_start(way.words[0], error) from error


@contextlib.contextmanager
def reserved(port: int | None) -> Iterator[int]:
    """Hold a port of this machine without listening, for rank 0 to listen there; None is any.

    As long as it is bound, no other program is given it; a socket that asks for it by number and
    allows others on it, as torch's store does, can have it. Two launches that ask for the same
    number would both succeed: the second one to name it gets another.
    """
    with contextlib.ExitStack() as stack:
        held = stack.enter_context(socket.socket())
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            if port and sys.platform == "linux":
                claim = stack.enter_context(socket.socket(socket.AF_UNIX))
                claim.bind(f"\0notebook-accel port {port}")  # no file: it goes with this process
            held.bind(("127.0.0.1", port or 0))
        except OSError:
            held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def is_busy(port: int) -> bool:
    """Tell whether another program listens on ``port`` of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _not_there(way: Way) -> LaunchError:
    name = way.words[0]
    fix = "write another path, or leave --no_python out for a Python script"
    if way.who == ways.DEEPSPEED:
        fix = "pip install deepspeed, or write --deepspeed_multinode_launcher standard"
    elif way.who == ways.MPIRUN:
        fix = "install Open MPI, MPICH or Intel MPI, or leave --mpirun_hostfile out"
    return LaunchError(
        f"there is no program {name!r}",
        f"the ranks are to be started by {way.who}, and nothing on PATH has that name",
        fix,
    )

"""From a decision to running processes: this process becomes the program, or watches it."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Mapping

from notebook_accel.errors import LaunchError
from notebook_accel.launch.scripts import way as ways
from notebook_accel.launch.scripts.way import Way


def start(way: Way, env: Mapping[str, str], say: Callable[[str], None]) -> int:
    """Carry out ``way`` in the environment ``env``; give the exit code, if this process goes on.

    ``say`` writes a line about the run.

    Errors: LaunchError when the program is not there.
    """
    env = way.environment(env)
    if way.who == ways.SIDE_BY_SIDE:
        from notebook_accel.launch.scripts import side_by_side

        with reserve(way.port) as reserved:
            port = reserved.getsockname()[1]
            envs = [
                {**env, **ways.rank_environment(rank, way.num_ranks, port)}
                for rank in range(way.num_ranks)
            ]
            try:
                return side_by_side.run(way.words, envs, say)
            except OSError as error:
                raise _does_not_start(way, error) from error
    program = shutil.which(way.words[0], path=env.get("PATH"))
    if program is None:
        raise _not_there(way)
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and that is inherited
    try:
        os.execve(program, list(way.words), env)
    except OSError as error:
        raise _does_not_start(way, error) from error


def reserve(port: int | None) -> socket.socket:
    """Bind a port of this machine without listening, for rank 0 to listen there; None is any.

    As long as it is bound, no other program is given it; a socket that asks for it by number and
    allows others on it, as torch's store does, can have it.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind(("127.0.0.1", port or 0))
    except OSError:  # taken since it was looked at
        held.bind(("127.0.0.1", 0))
    return held


def is_busy(port: int) -> bool:
    """Tell whether another program listens on ``port`` of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _does_not_start(way: Way, error: OSError) -> LaunchError:
    return LaunchError(
        f"{way.words[0]} does not start: {error.strerror}",
        "the system refused to run it as a program",
        "look whether it is one: a text needs a first line like #!/bin/sh",
    )


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

"""Ties a process to its parent, then becomes the program it was given.

    python -I -S tie.py PARENT program [its words]

Torch's agent starts each rank in a session of its own, where nothing ends it when the agent is
killed, and a command that is killed ends none of its children: their end is asked of the system
here. It also says that a run has been started again.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def tied(words: Sequence[str]) -> list[str]:
    """Give the command line that runs ``words``, ended together with this process."""
    if sys.platform == "win32":  # nothing becomes another program there
        return list(words)
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid()), *words]


def main(parent: int, words: list[str]) -> None:
    """Become ``words``, ended together with the process ``parent``."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before it could be asked for
        sys.exit(1)
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if restarts != "0" and os.environ.get("LOCAL_RANK") == "0":
        most = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "?")
        size = os.environ.get("WORLD_SIZE", "?")
        print(
            f"notebook-accel launch: restart {restarts} of {most}, world size {size}",
            file=sys.stderr,
            flush=True,
        )
    try:
        os.execvp(words[0], words)
    except OSError as error:
        sys.exit(f"notebook-accel launch: {words[0]}: {error.strerror}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])

"""Torch's elastic agent, told what to start and asked to speak plainly.

Its words: [torchrun's options] -- program [the program's words]

Rendezvous, restarts and the watch over the ranks are torch's. Ours is the end: the exit code of
the rank that failed first instead of 1, a line instead of a page, and ranks that do not outlive
an agent that was killed (``tie``).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PROG = "notebook-accel launch"
_BY_AGENT = (signal.SIGTERM, signal.SIGKILL)


def main(argv: Sequence[str]) -> int:
    """Run the agent on this machine until its ranks have ended; give the exit code."""
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError

    from notebook_accel.launch.scripts.ending import exit_code

    cut = list(argv).index("--")
    tie = [sys.executable, "-I", "-S", str(Path(__file__).with_name("tie.py")), str(os.getpid())]
    words = [*argv[:cut], "--no-python", *tie, *argv[cut + 1 :]]
    options = torchrun.parse_args(words)  # type: ignore[no-untyped-call]
    if "LOGLEVEL" not in os.environ:  # what torch logs of an end is said below, and by the ranks
        logging.getLogger("torch.distributed.elastic").setLevel("ERROR")
        logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel("CRITICAL")
    try:
        torchrun.run(options)  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        failures = sorted(error.failures.items(), key=lambda one: one[1].timestamp)
        rank, code = first({rank: int(one.exitcode) for rank, one in failures})
        how = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        most = options.max_restarts
        tries = f" after {most} restart{'s' if most > 1 else ''}" if most else ""
        print(f"{PROG}: rank {rank} failed{tries}, {how}", file=sys.stderr)
        return exit_code(code)
    except SignalException as ended:
        print(f"{PROG}: ended by {ended.sigval.name}", file=sys.stderr, flush=True)
        signal.signal(ended.sigval, signal.SIG_DFL)
        os.kill(os.getpid(), ended.sigval)
    except RendezvousError as error:
        print(f"{PROG}: the machines did not find each other: {error}", file=sys.stderr)
        print(
            "  do:  start the same command on every machine, and look whether "
            f"{options.rdzv_endpoint or options.master_addr} can be reached from here",
            file=sys.stderr,
        )
        return 1
    return 0


def first(codes: Mapping[int, int]) -> tuple[int, int]:
    """Give rank and exit code of the failure to blame; ``codes`` are in the order of time.

    Torch's clock counts whole seconds, and what the agent ended afterwards is among them.
    """
    own = {rank: code for rank, code in codes.items() if -code not in _BY_AGENT} or codes
    return next(iter(own.items()))

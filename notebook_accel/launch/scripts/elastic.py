"""Torch's elastic agent, told what to start and asked to speak plainly.

Its words: [torchrun's options] -- program [the program's words]

Rendezvous, restarts and the watch over the ranks are torch's. Ours is the end: the exit code of
the rank that failed first instead of 1, a line instead of a page, and ranks that do not outlive
an agent that was killed (``tie``).
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from notebook_accel.config.installed import version_of
from notebook_accel.config.words import counted
from notebook_accel.events.model import signal_name
from notebook_accel.launch.scripts.ending import exit_code
from notebook_accel.launch.scripts.rendezvous import RUN_PATH
from notebook_accel.launch.scripts.tie import tied

PROG = "notebook-accel launch"
_BY_AGENT = (signal.SIGTERM, signal.SIGKILL)


def main(argv: Sequence[str]) -> int:
    """Run the agent on this machine until its ranks have ended; give the exit code."""
    is_plain = "LOGLEVEL" not in os.environ and "TORCH_CPP_LOG_LEVEL" not in os.environ
    if is_plain:  # read as torch is loaded; what its C++ logs of errors, it raises too
        os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"
    from torch.distributed import DistError
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError

    if is_plain:  # what torch logs of an end is said below, and by the ranks
        del os.environ["TORCH_CPP_LOG_LEVEL"]
        logging.getLogger("torch.distributed.elastic").setLevel("ERROR")
        logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel("CRITICAL")
    cut = list(argv).index("--")
    own, program = argv[:cut], argv[cut + 1 :]
    if RUN_PATH not in own:
        program = ["--no-python", *tied(program)]
    if unknown := unknown_words(own, torchrun.get_args_parser()):
        _say(
            f"torch {version_of('torch')} has no option {', '.join(unknown)}\n"
            "  why: options of torchrun are passed on to the torch that is installed\n"
            "  do:  leave it out, or install a torch that has it"
        )
        return 2
    words = [*own, *program]
    options = torchrun.parse_args(words)  # type: ignore[no-untyped-call]
    try:
        torchrun.run(options)  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        failures = sorted(error.failures.items(), key=lambda one: one[1].timestamp)
        codes = {rank: int(failure.exitcode) for rank, failure in failures}
        return _say_who_failed(codes, options.max_restarts)
    except SignalException as ended:
        _say(f"ended by {ended.sigval.name}")
        signal.signal(ended.sigval, signal.SIG_DFL)
        os.kill(os.getpid(), ended.sigval)
    except (RendezvousError, DistError) as error:
        place = options.rdzv_endpoint or f"{options.master_addr}:{options.master_port}"
        why = str(error).split(" Exception raised from ")[0].splitlines()
        _say(
            "the machines did not find each other\n"
            f"  why: {why[0] if why else 'not all of them came in time'}\n"
            "  do:  start the same command on every machine, and look whether "
            f"{place} can be reached from each"
        )
        return 1
    except ValueError as error:
        _say(f"torch's agent does not take these options: {error}")
        return 2
    return 0


def unknown_words(words: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Give the options among ``words`` that ``parser`` does not have."""
    known = parser._option_string_actions
    return [word for word in words if word.startswith("--") and word not in known]


def _say(text: str) -> None:
    print(f"{PROG}: {text}", file=sys.stderr, flush=True)


def _say_who_failed(codes: Mapping[int, int], most: int) -> int:
    rank, code = first(codes)
    how = f"exit code {code}" if code >= 0 else f"killed by {signal_name(-code)}"
    tries = f" after {counted(most, 'restart')}" if most else ""
    _say(f"rank {rank} failed{tries}, {how}")
    return exit_code(code)


def first(codes: Mapping[int, int]) -> tuple[int, int]:
    """Give rank and exit code of the failure to blame; ``codes`` are in the order of time.

    Torch's clock counts whole seconds, and what the agent ended afterwards is among them.
    """
    own = {rank: code for rank, code in codes.items() if -code not in _BY_AGENT} or codes
    return next(iter(own.items()))

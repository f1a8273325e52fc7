"""``notebook-accel doctor``: what stands in the way of training here, or in a running kernel."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from notebook_accel.cli.child import call
from notebook_accel.cli.parsing import count
from notebook_accel.launch.doctor import Diagnosis, as_data, examine, holders, kernel
from notebook_accel.launch.trial import Trial, Wanted


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument(
        "--num_processes", type=count, default=2, help="ranks to try it with (default: 2)"
    )
    parser.add_argument("--pid", type=int, help="look at this process, a kernel that runs here")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(options: argparse.Namespace) -> int:
    """Print the findings; exit code 1 if one of them stands in the way."""
    if options.pid is not None:
        diagnosis = Diagnosis(tuple(kernel(options.pid)), options.num_processes)
        text = "\n".join(map(str, diagnosis.findings))  # nobody tried whether processes can train
    else:
        found = examine(options.num_processes, _in_a_child)
        diagnosis = Diagnosis((*found.findings, *holders()), options.num_processes)
        text = repr(diagnosis)
    print(json.dumps(as_data(diagnosis), indent=2) if options.json else text)
    return 0 if diagnosis.healthy else 1


def _in_a_child(wanted: Sequence[Wanted]) -> list[Trial]:
    """Make all trials in one process, which imports torch once."""
    plain = [dict(vars(one)) for one in wanted]
    told: list[dict[str, Any]] = call("notebook_accel.launch.trial:ask_child", wanted=plain)
    return [Trial(**one) for one in told]

"""A trial: does a launch of n ranks work here? Starts them, lets them add up, tells how it went."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from notebook_accel.config.words import counted, ranks
from notebook_accel.errors import ConfigError, Explained
from notebook_accel.launch import devices, forkserver
from notebook_accel.launch.plan import plan
from notebook_accel.launch.quiet import quiet_attempt
from notebook_accel.launch.run import Interrupts

TIMEOUT_S = 60.0
_MOST_A_CORE = 4


@dataclass(frozen=True)
class Trial:
    """How a trial went; ``error`` is empty when every rank had the right sum.

    Units: ``took_s`` from the start of the workers to the end of the last one; ``waited_s`` before
        that, for what they start from (the first launch from a forkserver waits for its imports).
    """

    method: str
    devices: str
    num_ranks: int
    took_s: float = 0.0
    error: str = ""
    why: str = ""
    waited_s: float = 0.0


@dataclass(frozen=True)
class Wanted:
    """A trial to make."""

    num_ranks: int
    device: str = "cpu"
    start_method: str = "auto"


def try_all(wanted: Sequence[Wanted]) -> Iterator[Trial]:
    """Make one trial after the other, while the forkserver imports what the later ones need.

    Ranks: called in the notebook's own process. Nothing is printed.
    """
    if any(one.start_method == "forkserver" for one in wanted):
        forkserver.running()
    for one in wanted:
        yield try_ranks(one.num_ranks, one.device, one.start_method)


def try_ranks(num_ranks: int, device: str = "cpu", start_method: str = "auto") -> Trial:
    """Start ``num_ranks`` workers as a launch would, let them all-reduce, and end them.

    Ranks: called in the notebook's own process. Nothing is printed.
    """
    found = devices.accelerators() if device != "cpu" else []
    placed = plan(num_ranks, device, found, devices.usable_cores())
    began = time.monotonic()
    try:
        attempt = quiet_attempt(_add_up, (), placed, start_method, TIMEOUT_S, Interrupts())
        result = attempt.go()
    except Explained as error:
        said = f"{type(error).__name__}: {error.what}"
        return Trial(start_method, placed.device_words, num_ranks, error=said, why=error.why)
    except Exception as error:  # whatever a rank met here is the finding
        said = f"{type(error).__name__}: {error}"
        return Trial(start_method, placed.device_words, num_ranks, error=said)
    wrong = [rank for rank, value in enumerate(result.values) if value != num_ranks]
    said = f"{ranks(wrong)} had another sum than {num_ranks}" if wrong else ""
    method = attempt.order.choice.method
    waited_s = max(0.0, time.monotonic() - began - result.duration_s)
    return Trial(method, placed.device_words, num_ranks, result.duration_s, said, waited_s=waited_s)


def too_many(num_ranks: int, num_cores: int) -> ConfigError | None:
    """Give the error for more ranks than these cores can serve: a try could take the machine."""
    if num_ranks <= _MOST_A_CORE * num_cores:
        return None
    return ConfigError(
        f"{num_ranks} processes on {counted(num_cores, 'core')} are not tried",
        "each imports torch, which takes some hundred MiB, and they take turns on the cores",
        f"try {_MOST_A_CORE * num_cores} or fewer; a launch starts as many as it is told",
    )


def ask_child(wanted: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Make trials in this process and give them as plain data, for a process that asks another."""
    return [dict(vars(trial)) for trial in try_all([Wanted(**one) for one in wanted])]


def _add_up() -> int:
    """Be one rank: count all ranks, on the device that this one has."""
    torch = importlib.import_module("torch")
    accelerator = importlib.import_module("notebook_accel.runtime.accelerator").Accelerator()
    one = torch.ones(1, device=accelerator.device)
    return int(accelerator.reduce(one, reduction="sum").item())

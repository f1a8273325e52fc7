"""A trial: does a launch of n ranks work here? Starts them, lets them add up, tells how it went."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from notebook_accel.config.words import counted, ranks
from notebook_accel.errors import ConfigError, Explained
from notebook_accel.launch import devices
from notebook_accel.launch.plan import plan
from notebook_accel.launch.quiet import quiet_attempt
from notebook_accel.launch.run import Interrupts

TIMEOUT_S = 60.0
_MOST_A_CORE = 4


@dataclass(frozen=True)
class Trial:
    """How a trial went; ``error`` is empty when every rank had the right sum.

    Units: ``took_s`` from the start of the workers to the end of the last one.
    """

    method: str
    devices: str
    num_ranks: int
    took_s: float = 0.0
    error: str = ""
    why: str = ""


def try_ranks(num_ranks: int, device: str = "cpu", start_method: str = "auto") -> Trial:
    """Start ``num_ranks`` workers as a launch would, let them all-reduce, and end them.

    Ranks: called in the notebook's own process. Nothing is printed.
    """
    found = devices.accelerators() if device != "cpu" else []
    placed = plan(num_ranks, device, found, devices.usable_cores())
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
    return Trial(method, placed.device_words, num_ranks, result.duration_s, said)


def too_many(num_ranks: int, num_cores: int) -> ConfigError | None:
    """Give the error for more ranks than these cores can serve: a try could take the machine."""
    if num_ranks <= _MOST_A_CORE * num_cores:
        return None
    return ConfigError(
        f"{num_ranks} processes on {counted(num_cores, 'core')} are not tried",
        "each imports torch, which takes some hundred MiB, and they take turns on the cores",
        f"try {_MOST_A_CORE * num_cores} or fewer; a launch starts as many as it is told",
    )


def ask_child(num_ranks: int, device: str, start_method: str) -> dict[str, Any]:
    """Make a trial in this process and give it as plain data, for a process that asks another."""
    return dict(vars(try_ranks(num_ranks, device, start_method)))


def _add_up() -> int:
    """Be one rank: count all ranks, on the device that this one has."""
    torch = importlib.import_module("torch")
    accelerator = importlib.import_module("notebook_accel.runtime.accelerator").Accelerator()
    one = torch.ones(1, device=accelerator.device)
    return int(accelerator.reduce(one, reduction="sum").item())

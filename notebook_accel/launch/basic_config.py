"""``write_basic_config``: a configuration file for this machine, without a question."""

from __future__ import annotations

import os
from pathlib import Path

from notebook_accel.config.catalog.setting import DEFAULT_PRECISION
from notebook_accel.config.places import at_home, default_path
from notebook_accel.config.resolve import RunConfig
from notebook_accel.config.store import write
from notebook_accel.launch.devices import accelerators
from notebook_accel.launch.machine import Machine


def write_basic_config(
    mixed_precision: str = DEFAULT_PRECISION,
    save_location: str | os.PathLike[str] | None = None,
) -> Path | bool:
    """Write a file that takes all accelerators of this machine, else its CPU; give its path.

    It lies where ``notebook_launcher`` and the command line look for one, unless
    ``save_location`` names another place. A file that is there already is left alone, and False
    comes back.

    Errors: ConfigError for an unknown precision, or a place that cannot be written to.
    """
    path = default_path() if save_location is None else at_home(save_location)
    if path.exists():
        print(f"note: {path} is there already and stays as it is")
        return False
    write(basic_config(mixed_precision), path, accelerate=True)
    return path


def basic_config(mixed_precision: str = DEFAULT_PRECISION) -> RunConfig:
    """Give the configuration for this machine: one process for each accelerator, else one."""
    machine = Machine(tuple(accelerators()))
    count = machine.num_ranks(machine.kind)
    return RunConfig(device=machine.kind, num_processes=count, mixed_precision=str(mixed_precision))

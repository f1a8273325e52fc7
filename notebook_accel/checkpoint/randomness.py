"""The random numbers of one rank: where all its generators stand."""

from __future__ import annotations

import random
from typing import Any

import torch

from notebook_accel.ranks.seeding import set_seed

# Accelerate's names: each reads the other's files.
PYTHON, NUMPY, TORCH = "random_state", "numpy_random_seed", "torch_manual_seed"
DEVICE = "torch_{}_manual_seed"


def states(device: torch.device) -> dict[str, Any]:
    """Where Python's, numpy's and torch's generators stand, the one of ``device`` included."""
    found: dict[str, Any] = {PYTHON: random.getstate(), TORCH: torch.get_rng_state()}
    try:
        import numpy
    except ImportError:  # optional: nothing of it to keep
        pass
    else:
        found[NUMPY] = numpy.random.get_state()
    if device.type != "cpu":
        found[DEVICE.format(device.type)] = torch.get_device_module(device).get_rng_state()
    return found


def restore(saved: dict[str, Any], device: torch.device) -> None:
    """Set every generator that ``saved`` knows; others stay where they are."""
    if PYTHON in saved:
        random.setstate(saved[PYTHON])
    if TORCH in saved:
        torch.set_rng_state(saved[TORCH])
    if NUMPY in saved:
        import numpy

        numpy.random.set_state(saved[NUMPY])
    state = saved.get(DEVICE.format(device.type))
    if device.type != "cpu" and state is not None:
        if isinstance(state, list):  # Accelerate keeps those of all devices
            state = state[device.index or 0] if len(state) > (device.index or 0) else state[0]
        torch.get_device_module(device).set_rng_state(state)


def derive(saved: dict[str, Any], rank: int) -> None:
    """Seed every generator of ``rank`` from rank 0's: apart from its, and the same each time."""
    source = torch.Generator()
    source.set_state(saved[TORCH])
    seed = int(torch.empty((), dtype=torch.int64).random_(generator=source).item())
    set_seed((seed + rank * 0x9E3779B97F4A7C15) % 2**63)  # far apart, whatever is drawn first

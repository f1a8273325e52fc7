"""The global random numbers of this process: kept aside, put back, seeded."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

GOLDEN = 0x9E3779B97F4A7C15  # steps of this size lie far apart modulo a power of two


def snapshot() -> dict[str, Any]:
    """Where the generators of torch, Python and numpy (if in use) stand."""
    numpy = sys.modules.get("numpy")
    return {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": None if numpy is None else numpy.random.get_state(),
    }


def restore(state: dict[str, Any]) -> None:
    """Put the generators back to where a snapshot found them."""
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and state["numpy"] is not None:
        name, words, *rest = state["numpy"]
        if isinstance(words, torch.Tensor):
            words = words.numpy().astype("uint32")
        numpy.random.set_state((name, words, *rest))


def in_plain_values(state: dict[str, Any]) -> dict[str, Any]:
    """The same snapshot without numpy's arrays, for files that hold plain data only."""
    if state.get("numpy") is None or isinstance(state["numpy"][1], torch.Tensor):
        return state
    name, words, *rest = state["numpy"]
    return {**state, "numpy": (name, torch.from_numpy(words.astype("int64")), *rest)}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether nothing was drawn between two snapshots."""
    mine, its = one["numpy"], other["numpy"]
    return (
        torch.equal(one["torch"], other["torch"])
        and one["python"] == other["python"]
        and (mine is None or (bool((mine[1] == its[1]).all()) and mine[2:] == its[2:]))
    )


@contextmanager
def kept() -> Iterator[None]:
    """Leave the global generators as they were, whatever the block draws."""
    before = snapshot()
    try:
        yield
    finally:
        restore(before)


def reseed(seed: int) -> None:
    """Seed the generators of torch (on the CPU), Python and numpy (if in use)."""
    torch.default_generator.manual_seed(seed % 2**63)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def mixed(seed: int, *numbers: int) -> int:
    """A seed for each tuple of numbers, as unlike as if drawn."""
    for number in numbers:
        seed = (seed + (number + 1) * GOLDEN) % 2**64
        seed ^= seed >> 31
        seed = seed * 0xBF58476D1CE4E5B9 % 2**64
        seed ^= seed >> 27
    return seed % 2**63


def draw(generator: torch.Generator | None) -> int:
    """Draw the number that a DataLoader draws at the start of a pass."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def generator_at(state: torch.Tensor) -> torch.Generator:
    """A generator of its own that stands at ``state``."""
    generator = torch.Generator()
    generator.set_state(state)
    return generator

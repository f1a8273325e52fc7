"""Degrees that multiply to a number of ranks: what fills a world, and which exclude each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from notebook_accel.config.words import counted
from notebook_accel.errors import ConfigError

# Two ways to divide a model that cannot both be, and why.
_EXCLUDE = (
    ("cp", "sp", "both cut the same sequences"),
    ("pp", "cp", "a stage of a pipeline sees whole sequences"),
    ("pp", "sp", "a stage of a pipeline sees whole sequences"),
)


def excluded(sizes: Mapping[str, int]) -> tuple[str, str, str] | None:
    """Give the first two axes ("pp", "cp", "sp") with several ranks that exclude each other.

    The third is why.
    """
    for one, other, why in _EXCLUDE:
        if sizes.get(one, 1) > 1 and sizes.get(other, 1) > 1:
            return one, other, why
    return None


def places_left(total: int, degrees: Iterable[int | None]) -> int | None:
    """Give how many groups of ranks degrees leave of ``total``; None where they do not divide."""
    product = math.prod(degree or 1 for degree in degrees)
    return None if total % product else total // product


def check_product(sizes: Mapping[str, int], world_size: int) -> None:
    """Raise ConfigError for degrees that together do not fill a world.

    Each is named by words, in which {} is its size; those of 1 are not named.
    """
    asked = " x ".join(words.format(size) for words, size in sizes.items() if size > 1)
    check_fills(asked, math.prod(sizes.values()), world_size)


def check_fills(asked: str, together: int, world_size: int) -> None:
    """Raise ConfigError for degrees whose groups of ``together`` ranks do not fill a world."""
    if places_left(world_size, (together,)) is None:
        fewer = f", or ask for divisors of {world_size}" if world_size > 1 else ""
        raise ConfigError(
            f"{asked} in a world of {counted(world_size, 'rank')}",
            f"groups of {together} ranks do not fill it",
            f"launch a multiple of {together} processes{fewer}",
        )

"""Numbers and kinds as a person reads them, for every message and every page."""

from __future__ import annotations

import re
from collections.abc import Collection


def counted(number: int, noun: str, plural: str = "") -> str:
    """Write a number with its noun: "1 rank", "3 ranks"; ``plural`` where an s is not enough."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def kind_of(value: object) -> str:
    """Name the type of ``value``, with its article: "a list", "an int"."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def ranks(numbers: Collection[int]) -> str:
    """Name ranks: "rank 3", "ranks 0 and 2", "ranks 0-3"."""
    if len(numbers) == 2:
        return "ranks {} and {}".format(*sorted(numbers))
    return f"rank{'' if len(numbers) == 1 else 's'} {spanned(numbers, ', ')}"


def spanned(numbers: Collection[int], between: str = ",") -> str:
    """Write whole numbers in the shortest way: "0-3", "0,2"."""
    found = sorted(numbers)
    if len(found) > 2 and found == list(range(found[0], found[-1] + 1)):
        return f"{found[0]}-{found[-1]}"
    return between.join(map(str, found))


def size(num_bytes: float) -> str:
    """Write bytes in the unit that fits: "640 B", "412 MB", "3.1 GB"."""
    if num_bytes < 1000:
        return f"{num_bytes:.0f} B"
    for unit in ("kB", "MB", "GB"):
        num_bytes /= 1000
        if num_bytes < 999.5:
            return f"{num_bytes:.1f} {unit}" if num_bytes < 9.95 else f"{num_bytes:.0f} {unit}"
    return f"{num_bytes / 1000:.1f} TB"


def without_numbers(text: str) -> str:
    """Take numbers and addresses out of ``text``: ranks say the same of "cuda:0" and "cuda:1"."""
    return re.sub(r"0x[0-9a-f]+|\d+", "#", text)

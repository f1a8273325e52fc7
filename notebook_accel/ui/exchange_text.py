"""An exchange as text: a line for each rank, what it brings and what it holds."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from notebook_accel.ui.exchange import Exchange


def text(shown: Exchange) -> str:
    """The whole, for a terminal and for who reads without pictures."""
    brought = [_row(one) for one in shown.before]
    held = [holds(shown, rank) for rank in range(shown.num_ranks)]
    width = max(map(len, brought))
    lines = [headline(shown)]
    lines += [
        f"  rank {rank}   {before:<{width}}   ->   {after}"
        for rank, (before, after) in enumerate(zip(brought, held, strict=True))
    ]
    if shown.error is not None:
        lines += [f"{type(shown.error).__name__}: {shown.error}"]
    return "\n".join(lines)


def headline(shown: Exchange) -> str:
    """Name the collective and say what it does, and how it ran."""
    if shown.error is not None:
        return f"{shown.operation} on {shown.num_ranks} processes: the ranks got stuck"
    ran = "" if shown.after is None else f" ({shown.took_s:.1f} s)"
    return f"{shown.operation} on {shown.num_ranks} processes{ran}: {shown.meaning}"


def holds(shown: Exchange, rank: int) -> str:
    """What one rank holds afterwards, and from whom; or why it holds nothing new."""
    if shown.error is not None:
        return "did not come" if rank in shown.absent else "waits"
    if shown.after is None:
        return "?"
    numbers = zip(shown.after[rank], shown.origins[rank], strict=True)
    parts = [
        f"{_row([number for number, _ in group])} (from {come_from(origin)})"
        for origin, group in groupby(numbers, lambda pair: pair[1])
    ]
    return " | ".join(parts)


def come_from(origin: tuple[int, ...]) -> str:
    """Name the ranks that are in a number: "0+1+2"."""
    return "+".join(map(str, origin))


def number(value: float) -> str:
    """A number as short as it can be told."""
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def _row(numbers: tuple[float, ...] | list[float]) -> str:
    return " ".join(map(number, numbers))

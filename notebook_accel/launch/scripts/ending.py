"""How the processes of a script ended, in as few words as it takes, and with which exit code.

The blamed rank is the first that failed for a reason of its own: a lost connection is what the
others see when a rank has gone. What several ranks say alike is told once.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from notebook_accel.config.words import ranks, without_numbers
from notebook_accel.events.model import signal_name
from notebook_accel.launch.failure import is_comm_text


@dataclass(frozen=True)
class Fate:
    """How one rank ended: ``code`` as ``os`` gives it (negative: a signal), ``words`` its last.

    ``by_us``: it had been told to end before it did.
    """

    rank: int
    code: int
    words: bytes = b""
    by_us: bool = False


@dataclass(frozen=True)
class Told:
    """What is said at the end: the last words of ranks, and a line about who failed how."""

    words: bytes = b""
    summary: str = ""


def tell(
    fates: Sequence[Fate], size: int, asked_to_end: signal.Signals | None = None
) -> tuple[Told, int]:
    """Say how the run ended and give its exit code; ``fates`` are in the order of their ends."""
    failed = [one for one in fates if one.code]
    if not failed:  # warnings may look like last words
        return Told(b"".join(_unlike([one.words for one in fates]))), 0
    if asked_to_end is not None:
        first = min(failed, key=lambda one: one.rank)
        return Told(first.words, f"ended by {asked_to_end.name}"), 128 + asked_to_end
    own = [one for one in failed if not one.by_us] or failed
    root = next((one for one in own if not lost_its_peers(one.words)), own[0])
    alike = [one for one in own if one.code == root.code and _same(one.words, root.words)]
    others = [one for one in own if one not in alike and not lost_its_peers(one.words)]
    words = root.words
    for other in others:
        if other.words:
            words += f"\nrank {other.rank}:\n".encode() + other.words
    return Told(words, _summary(root, [one.rank for one in alike], size)), exit_code(root.code)


def plain(words: bytes) -> bytes:
    """Take out the rank that torch writes before each line of a traceback."""
    return re.sub(rb"^\[rank\d+\]: ?", b"", words, flags=re.MULTILINE)


def exit_code(code: int) -> int:
    """Give the exit code that a shell gives a process that ended with ``code``."""
    return code if code >= 0 else 128 - code


def lost_its_peers(words: bytes) -> bool:
    """Tell whether a rank failed only because another one had gone."""
    lines = words.decode("utf-8", "replace").strip().splitlines()
    said = [line for line in lines if re.match(r"[\w.]+(:|$)", line)]
    if not said:
        return False
    kind, _, message = said[-1].partition(": ")
    return is_comm_text(kind.rpartition(".")[2], message)


def _summary(root: Fate, alike: Sequence[int], size: int) -> str:
    who = f"{ranks(alike)} of {size}"
    if root.code < 0:
        from notebook_accel.launch.verdict import signal_advice

        why, fix = signal_advice(-root.code)
        were = "was" if len(alike) == 1 else "were"
        return f"{who} {were} killed by {signal_name(-root.code)}\n  why: {why}\n  do:  {fix}"
    same = " in the same way" if len(alike) > 1 else ""
    return f"{who} failed{same}, exit code {root.code}"


def _unlike(texts: Sequence[bytes]) -> list[bytes]:
    kept: list[bytes] = []
    for text in texts:
        if not any(_same(text, other) for other in kept):
            kept.append(text)
    return kept


def _same(one: bytes, other: bytes) -> bool:
    """Compare without numbers: "rank 3 ..." and "cuda:1 ..." are the same failure."""
    return _told(one) == _told(other)


def _told(text: bytes) -> list[str]:
    lines = text.decode("utf-8", "replace").split("\n")
    # where it happened stays: two lines of one file are two failures
    return [line if line.startswith("  File ") else without_numbers(line) for line in lines]

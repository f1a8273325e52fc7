"""Which curves belong in one picture: train and validation of the same number, side by side."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from notebook_accel.events.history import History

_PARTS = {"train": "train", "training": "train", "val": "val", "valid": "val"}
_PARTS |= {"validation": "val", "eval": "eval", "test": "test", "dev": "dev"}
_SPLIT = re.compile(r"^([a-z]+)[/_.\- ](.+)$", re.IGNORECASE)


@dataclass(frozen=True)
class Group:
    """Curves of one number (``metric``), in the order in which they came."""

    metric: str
    names: tuple[str, ...]


def split(name: str) -> tuple[str, str]:
    """Read a name as (number, part of the data): ``val_loss`` is the loss on "val".

    A second call site's loss ("loss/2") is a loss; a name without a part has "".
    """
    match = _SPLIT.match(name)
    if match and match[1].lower() in _PARTS:
        return match[2], _PARTS[match[1].lower()]
    head, _, tail = name.rpartition("/")
    return (head, "") if head and tail.isdigit() else (name, "")


def groups(names: Iterable[str]) -> list[Group]:
    """Put curves of one number together: losses first, learning rates last."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(split(name)[0], []).append(name)
    made = [Group(metric, tuple(members)) for metric, members in found.items()]
    return sorted(made, key=lambda group: _order(group.metric))


def pictures(history: History) -> list[Group]:
    """The groups that are drawn, in the same order: one point alone is a number and no curve.

    It is drawn beside a curve of the same number, unless it is a setting that never changed.
    """
    curves = {name for name in history if history.series(name).settled > 1}
    drawn = groups(name for name in history if name in curves or not is_rate(name))
    return [group for group in drawn if not curves.isdisjoint(group.names)]


def is_loss(name: str) -> bool:
    """True for a series of which less is better."""
    return any(word in name.lower() for word in ("loss", "error", "perplexity"))


def is_rate(name: str) -> bool:
    """True for a learning rate."""
    return split(name)[0].lower() in ("lr", "learning_rate", "learning rate")


def _order(metric: str) -> int:
    if is_rate(metric):
        return 3
    if metric.lower() == "loss":
        return 0
    return 1 if is_loss(metric) else 2

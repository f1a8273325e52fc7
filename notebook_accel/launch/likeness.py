"""What two machines must have in common to run one function together."""

from __future__ import annotations

import platform
import sys
from typing import Any

from notebook_accel import __version__
from notebook_accel.config.installed import version_of


def facts() -> dict[str, Any]:
    """Say what this machine has, without importing any of it."""
    return {
        "name": platform.node(),
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "torch": _release("torch"),
        "notebook_accel": __version__,
        "cloudpickle": _release("cloudpickle").partition(".")[0],
    }


def objection(mine: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Say what keeps the notebook's machine ``mine`` and ``theirs`` apart; "" if nothing does."""
    for name, why in (
        ("python", "a function's code is read by the same version of Python only"),
        ("torch", "ranks of one run speak the same version of torch"),
        ("notebook_accel", "both sides speak the same version of it"),
        ("cloudpickle", "what one version writes another may not read"),
    ):
        if mine.get(name) != theirs.get(name):
            return f"it has {name} {theirs.get(name)}, the notebook has {mine.get(name)}: {why}"
    return ""


def _release(package: str) -> str:
    """Give a package's version without its build ("2.13.0+cu128" and "2.13.0" talk)."""
    return version_of(package).partition("+")[0] or "none"

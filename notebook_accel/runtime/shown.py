"""What the instances of a face share, and whose it is after a fork."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from notebook_accel.events import context


def shared_state() -> dict[str, Any]:
    """Make the dict that all instances of a face share; a fork is settled before it is read."""
    state: dict[str, Any] = {}
    _all.append(state)
    return state


def settle() -> bool:
    """Decide, once after a fork, whose place the faces show; tell whether it is a new one.

    A launched worker is forked off the kernel, and what the kernel's faces showed is not its place:
    it is of another run. Any other child (a worker of a DataLoader) has its parent's.
    """
    if _Fork.inherited:
        _Fork.place_is_new = context.current() is not _Fork.run
        if not _Fork.place_is_new:
            for state, before in _Fork.inherited:
                state.update(before)
        _Fork.inherited = []
    return _Fork.place_is_new


def not_there(face: Any, name: str) -> AttributeError:
    """The error for an attribute that a face does not have, or does not have any more."""
    kind = type(face).__name__
    if not face.__dict__ and not name.startswith("__"):
        return AttributeError(
            f"This {kind} shows nothing.\n"
            f"  why: {kind}._reset_state() emptied it, or it is another process's.\n"
            f"  do:  make an Accelerator (or {kind}() anew) before reading it."
        )
    return AttributeError(f"{kind!r} object has no attribute {name!r}")


_all: list[dict[str, Any]] = []


class _Fork:
    """What the faces showed in the process that this one was forked off, until it is settled."""

    inherited: ClassVar[list[tuple[dict[str, Any], dict[str, Any]]]] = []
    run: context.WorkerContext | None = None
    place_is_new = False


def _after_fork() -> None:
    settle()
    _Fork.run = context.current()
    _Fork.inherited = [(state, dict(state)) for state in _all]
    for state in _all:
        state.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

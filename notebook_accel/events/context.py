"""What a worker can see of its run: who it is, its pen, its flags. The one ambient state.

``launch.worker`` sets it before the user's function runs; the runtime reads it through
``current()``. Outside a launched worker it is None.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Any, Protocol

from notebook_accel.config.placement import Placement
from notebook_accel.events.emitter import Emitter
from notebook_accel.events.pulse import Pulse


class Flags(Protocol):
    """The shared page by which the kernel asks; read by workers, written by the kernel."""

    @property
    def stop(self) -> bool:
        """True once the run was asked to stop."""
        ...


@dataclass(frozen=True)
class WorkerContext:
    """One worker's view of its run.

    ``settings`` are the resolved settings the launch gave explicitly (``mixed_precision`` ...);
    a missing key was not given. ``at_exit`` functions run after the user's function, newest first
    (the runtime leaves its process group there). ``salvage`` functions give what is worth
    keeping of a run that was stopped, as a list (the runtime offers its prepared models).
    ``before_return`` functions run once the user's function has returned; each is given a call that
    takes the value apart as sending it does, so that ``encoders`` meet what it holds.
    ``pulse`` is where this rank writes down in which collective it is (None: nobody looks).
    """

    placement: Placement
    emitter: Emitter
    flags: Flags
    settings: dict[str, Any]
    at_exit: list[Callable[[], None]] = field(default_factory=list)
    salvage: list[Callable[[], list[Any]]] = field(default_factory=list)
    pulse: Pulse | None = None
    before_return: list[Callable[[Callable[[], object]], None]] = field(default_factory=list)


_context: ContextVar[WorkerContext | None] = ContextVar("notebook_accel_worker", default=None)


def current() -> WorkerContext | None:
    """The context of the launched worker this code runs in, or None."""
    return _context.get()


def enter(context: WorkerContext) -> Token[WorkerContext | None]:
    """Make ``context`` current, in a worker for the rest of its process; the door calls it."""
    return _context.set(context)


def leave(token: Token[WorkerContext | None]) -> None:
    """Undo one ``enter``, where the process goes on after the run (start method inline)."""
    _context.reset(token)


# Objects that must not travel back as they are: type -> function giving what travels instead.
# The runtime registers its wrappers here (a prepared optimizer travels as the plain one); the
# launch side's encoder reads it, so that neither imports the other.
encoders: dict[type, Callable[[Any], Any]] = {}

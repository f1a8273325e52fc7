"""Every error a person can meet, drawn as one tree; each says what, why and what to do.

Explained
├── ConfigError (ValueError)       a value that was asked for cannot be
├── LaunchError (RuntimeError)     a launch cannot start, or a rank left without a word
│   ├── WorkerDied                 a rank left without a word: signal, exit code, early return
│   ├── RanksStuck                 the ranks wait for each other in different places
│   ├── WorkerFailed               a rank raised something that could not travel back as itself
│   └── RunTimeout (TimeoutError)  the run took longer than ``timeout_s``
├── RuntimeMisuse (RuntimeError)   a call of the training loop cannot be right
│   └── DistributedOperationException  ranks bring tensors that do not fit together (debug mode)
├── CheckpointError (RuntimeError, ValueError)  a checkpoint is absent, incomplete or another's
├── MissingPackage (ImportError)   an optional package that this call needs is not installed
├── NotHere (ImportError, NotImplementedError)  a part of Accelerate that comes later
├── NoSuchSeries (KeyError)        a history was asked for a name that nobody reported
├── NoSuchRun (KeyError)           a run was asked for that is not on record
└── NoSuchRank (IndexError)        a run was asked for a rank that it does not have

UserWarning
├── GuardRail                      something that nothing else would show is probably a mistake
└── CannotPadNestedTensorWarning   nested tensors stay as they are

KeyboardInterrupt
├── StopRun                        raised inside a worker, at a step that all ranks agreed on
└── RunInterrupted                 raised in the kernel; ``result`` is the partial result

Exception
└── RunStopped                     the same of a run that is awaited: tasks may raise it
"""

from __future__ import annotations

import os
from typing import Any, TypeVar

AnyExplained = TypeVar("AnyExplained", bound="Explained")


class Explained(Exception):
    """An error in three parts: a fact with its numbers, the mechanism behind it, what to do now.

    Errors: construct subclasses, never this class itself.
    """

    def __init__(self, what: str, why: str = "", fix: str = "") -> None:
        super().__init__(what, why, fix)
        self.what = what
        self.why = why
        self.fix = fix

    def __str__(self) -> str:
        lines = [self.what]
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.fix:
            lines.append(f"  do:  {self.fix}")
        return "\n".join(lines)

    def but(self: AnyExplained, what: str = "", fix: str = "") -> AnyExplained:
        """Give the same error with another fact or another way out, as its source words them."""
        return type(self)(what or self.what, self.why, fix or self.fix)

    def _render_traceback_(self) -> list[str]:
        """What IPython prints in the cell: the three lines instead of a wall of frames."""
        if os.environ.get("NOTEBOOK_ACCEL_TRACE"):
            import traceback

            return traceback.format_exception(type(self), self, self.__traceback__)
        return [f"{type(self).__name__}: {self}"]


class ConfigError(Explained, ValueError):
    """A wanted value that cannot be: unknown precision, impossible process count, bad arguments."""


class LaunchError(Explained, RuntimeError):
    """A launch that cannot start, or that ended without an exception of the user's own.

    ``result`` is what there was when a run that had started ended so: curves and output.
    """

    result: Any = None


class WorkerDied(LaunchError):
    """A rank left without returning: killed by a signal, ``sys.exit``, or an early return."""

    def __init__(
        self, what: str, why: str = "", fix: str = "", rank: int = -1, exit_code: int = 0
    ) -> None:
        super().__init__(what, why, fix)
        self.rank = rank
        self.exit_code = exit_code


class RanksStuck(LaunchError):
    """The ranks wait for each other in different collectives, which would never end."""


class WorkerFailed(LaunchError):
    """A rank raised an exception that could not travel back as itself.

    ``worker_traceback`` is the text of the traceback in the worker.
    """

    def __init__(
        self, what: str, why: str = "", fix: str = "", rank: int = -1, worker_traceback: str = ""
    ) -> None:
        super().__init__(what, why, fix)
        self.rank = rank
        self.worker_traceback = worker_traceback


class RunTimeout(LaunchError, TimeoutError):
    """The run took longer than ``timeout_s``; ``result`` holds what was there."""


class RuntimeMisuse(Explained, RuntimeError):
    """The training loop calls something in a way that cannot be right."""


class DistributedOperationException(RuntimeMisuse):
    """Ranks came to one collective with tensors that do not fit together; found in debug mode."""


class CheckpointError(Explained, RuntimeError, ValueError):
    """A checkpoint cannot be read or written: absent, incomplete, damaged, or of another run."""


class MissingPackage(Explained, ImportError):
    """An optional package that this call needs is not installed."""


class NotHere(Explained, ImportError, NotImplementedError):
    """A name or argument of Accelerate that this version does not have."""


class NoSuchSeries(Explained, KeyError):
    """A history was asked for a series that no rank reported."""


class NoSuchRun(Explained, KeyError):
    """A run was asked for that is not on record, or whose record cannot be read."""


class NoSuchRank(Explained, IndexError):
    """A run was asked for what a rank did that it does not have."""


class GuardRail(UserWarning):
    """A silent mistake, in all likelihood; see ``without_guards``.

    In a test, ``warnings.simplefilter("error", GuardRail)`` makes errors of them.
    """


class CannotPadNestedTensorWarning(UserWarning):
    """A nested tensor was to be padded: it has no one length, and stays as it is."""


class StopRun(KeyboardInterrupt):
    """Raised inside a worker when the run was asked to stop, so that ``finally`` blocks run."""


class _EndedEarly(BaseException):
    """A run was ended from outside; ``result`` is what there was by then."""

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class RunInterrupted(_EndedEarly, KeyboardInterrupt):
    """Raised in the kernel after an interrupted run; ``result`` is the partial result."""


class RunStopped(_EndedEarly, Exception):
    """Raised by ``await run`` after a run that was stopped; ``result`` is the partial result.

    A KeyboardInterrupt in a task ends the event loop it runs on: in a notebook, the kernel.
    """


def message_of(error: BaseException) -> str:
    """Give what an exception says, also where its ``__str__`` fails."""
    try:
        return str(error)
    except Exception as broken:
        return f"<no message: {type(broken).__name__} in __str__>"

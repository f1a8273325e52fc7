"""What a script that ends by an error of ours shows: the person's frames and our words.

Our own frames say nothing that the words do not; ``NOTEBOOK_ACCEL_TRACE`` keeps them.
"""

from __future__ import annotations

import functools
import os
import sys
from types import TracebackType

from notebook_accel.errors import Explained
from notebook_accel.events.lines import US, ipython, owner_of


@functools.cache  # once in a process: torch puts a hook of its own before this one
def leave_our_frames_out() -> None:
    """Let this process end by an error of ours without our frames; cells have their own way."""
    if ipython() is not None:
        return
    former = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, Explained) and not os.environ.get("NOTEBOOK_ACCEL_TRACE"):
            trace = without_ours(trace)
            error = error.with_traceback(trace)
            error.__cause__, error.__suppress_context__ = None, True  # its words say what led to it
        former(kind, error, trace)

    sys.excepthook = show


def without_ours(trace: TracebackType | None) -> TracebackType | None:
    """Give a traceback without the frames of this package."""
    if trace is None:
        return None
    rest = without_ours(trace.tb_next)
    if owner_of(trace.tb_frame.f_code.co_filename) == US:
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)

"""A worker's exception on its way to the cell: what it was, where, and whose fault.

The worker describes (``describe``); the kernel rebuilds the user's own exception (``revive``),
attaches the worker's traceback to it and renders it in the notebook's own terms
(``Cell In[7], line 12``), with the source lines that the kernel holds.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from notebook_accel.config.words import ranks as ranks_words
from notebook_accel.errors import Explained, RunInterrupted, WorkerFailed, message_of
from notebook_accel.events.lines import US, cell_number, owner_of, place_of
from notebook_accel.events.model import Cause, Failed, Frame

# What torch's collectives say when the other end is gone: by type where there is one, else by text.
_COMM_TYPES = {"DistNetworkError", "DistBackendError", "DistStoreError"}
_COMM_TEXT = re.compile(
    r"connection (closed|reset) by peer|gloo|nccl|broken pipe|socket(timeout)? error"
    r"|connectfullmesh|timed out waiting|store->(get|wait)|failed to recv",
    re.IGNORECASE,
)
T = TypeVar("T")
MAX_CAUSES = 5
SHOWN_FRAMES = 30  # a recursion has a thousand: the first and the last ones tell it


def is_comm_error(exc: BaseException) -> bool:
    """True for an error that the death of another rank explains."""
    seen: BaseException | None = exc
    for _ in range(10):
        if seen is None:
            return False
        if is_comm_text(type(seen).__name__, message_of(seen)):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def is_comm_text(type_name: str, message: str) -> bool:
    """Tell the same of one exception by what a traceback says of it."""
    return type_name in _COMM_TYPES or (
        type_name == "RuntimeError" and bool(_COMM_TEXT.search(message))
    )


def describe(rank: int, exc: BaseException, num_bytes: int = 0) -> Failed:
    """Describe ``exc``, caught in the worker, for the kernel."""
    frames = _frames(exc)
    text = "".join(traceback.format_exception(type(exc), exc, _skip_ours(exc.__traceback__)))
    return Failed(
        rank=rank,
        type_name=type(exc).__name__,
        message=message_of(exc),
        frames=frames,
        text=text,
        is_comm=is_comm_error(exc),
        num_bytes=num_bytes,
        causes=[Cause(type(one).__name__, message_of(one), _frames(one)) for one in _led_to(exc)],
    )


def _frames(exc: BaseException) -> list[Frame]:
    frames = [
        Frame(f.filename, f.lineno or 0, f.name, f.line or "")
        for f in traceback.extract_tb(_skip_ours(exc.__traceback__))
        if f.name != "_modified_open"  # IPython's own, around every open() in a cell
    ]
    if isinstance(exc, Explained):  # our words say more than our lines
        frames = [frame for frame in frames if owner_of(frame.filename) != US]
    return frames


def _led_to(exc: BaseException) -> list[BaseException]:
    """List what led to ``exc``, oldest first, as Python would tell it.

    Our own errors say themselves what led to them.
    """
    chain: list[BaseException] = []
    if isinstance(exc, Explained):
        return chain
    seen = exc
    while len(chain) < MAX_CAUSES:
        before = seen.__cause__
        if before is None and not seen.__suppress_context__:
            before = seen.__context__
        if before is None or before is exc or before in chain:
            break
        chain.insert(0, before)
        seen = before
    return chain


def _skip_ours(tb: TracebackType | None) -> TracebackType | None:
    """Drop the frames of our own door at the start: the story begins in the user's function."""
    while tb is not None and owner_of(tb.tb_frame.f_code.co_filename) == US:
        if tb.tb_next is None:
            break
        tb = tb.tb_next
    return tb


def revive(failed: Failed, exc: BaseException | None, ranks: list[int]) -> BaseException:
    """Make the exception that the cell raises out of what rank ``failed.rank`` sent.

    ``exc`` is the worker's exception rebuilt, or None if it could not travel; ``ranks`` are all
    ranks that failed in the same way. The result is of the user's own type when it can be; a note
    says where it was raised, its cause is the worker's traceback, and a cell shows only that.
    """
    if exc is None:
        exc = WorkerFailed(
            f"rank {failed.rank} raised {failed.type_name}: {failed.message}",
            f"the exception itself could not be sent back; its traceback in the worker:\n"
            f"{failed.text}",
            rank=failed.rank,
            worker_traceback=failed.text,
        )
    if hasattr(exc, "add_note"):  # the traceback itself is the cause's, so that it comes once
        own = users_own(failed.frames)
        where = f", {place(own[-1])}" if own else ""
        exc.add_note(f"raised in {ranks_words(ranks)}{where}")
    exc.__cause__ = WorkerTraceback(f"\n{failed.text}")
    _show_in_cells(exc, failed, ranks)
    return exc


def without_our_frames(go: Callable[[], T]) -> T:
    """Call ``go``; what it raises about the run comes without the frames of this package.

    They say nothing about the person's code. An error of our own making keeps them.
    """
    try:
        return go()
    except BaseException as error:
        about_the_run = isinstance(error, (Explained, RunInterrupted)) or isinstance(
            error.__cause__, WorkerTraceback
        )
        if not about_the_run or os.environ.get("NOTEBOOK_ACCEL_TRACE"):
            raise
        raise error.with_traceback(None) from error.__cause__


class WorkerTraceback(Exception):
    """The traceback of a worker as text: the ``__cause__`` of what the kernel raises."""


def _show_in_cells(exc: BaseException, failed: Failed, ranks: list[int]) -> None:
    """Give ``exc`` IPython's hook, so that a cell prints the worker's story only."""
    if os.environ.get("NOTEBOOK_ACCEL_TRACE"):
        return

    def render() -> list[str]:
        who = ranks_words(ranks)
        head = f"{failed.type_name} in {who}" + (", the same on each" if len(ranks) > 1 else "")
        message = str(exc) if isinstance(exc, Explained) else failed.message
        lines = []
        for cause in failed.causes:
            lines += [_render(cause.frames)] if cause.frames else []
            lines += [f"{cause.type_name}: {cause.message}", "", "which led to:", ""]
        lines += [_render(failed.frames)] if failed.frames else []
        return [head, *lines, f"{failed.type_name}: {message}"]

    try:
        exc._render_traceback_ = render  # type: ignore[attr-defined]
    except AttributeError:  # a type without __dict__: the ordinary traceback has the notes
        return


def _render(frames: list[Frame]) -> str:
    """Format the worker's frames with the kernel's knowledge of its cells."""
    mark, plain = ("\x1b[1m", "\x1b[0m") if sys.stdout is not None else ("", "")
    parts = []
    last = len(frames) - 1
    left_out = range(SHOWN_FRAMES // 2, len(frames) - SHOWN_FRAMES // 2)
    for position, frame in enumerate(frames):
        if position in left_out:
            if position == left_out[0]:
                parts.append(f"... {len(left_out)} more calls ...")
            continue
        parts.append(f"{mark}{place(frame)}{plain}, in {frame.name}")
        if cell_number(frame.filename) is not None or position == last:
            parts.append(_around(frame))
        elif frame.line:
            parts.append(f"      {frame.line}")
    return "\n".join(parts)


def place(frame: Frame) -> str:
    """Say where a line is, in the notebook's own terms if it is in a cell."""
    return place_of(frame.filename, frame.lineno)


def users_own(frames: list[Frame]) -> list[Frame]:
    """Leave out the frames of torch and of this package, unless there are no others."""
    theirs = [f for f in frames if "/torch/" not in f.filename and owner_of(f.filename) != US]
    return theirs or frames


def innermost(stacks: str) -> str:
    """Say where a rank is from what faulthandler wrote: the newest line outside torch."""
    _, _, main = stacks.rpartition("Current thread")
    lines = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', main or stacks)
    if not lines:
        return "in native code"
    named = [Frame(filename, int(number), name, "") for filename, number, name in lines]
    where = users_own(named)[0]
    inside = f", inside {named[0].name}" if where is not named[0] else ""
    return f"at {place(where)}, in {where.name}{inside}"


def _around(frame: Frame, context: int = 2) -> str:
    lines = linecache.getlines(frame.filename)
    if not lines:
        return f"----> {frame.lineno} {frame.line}"
    first = max(1, frame.lineno - context)
    shown = []
    for number in range(first, min(len(lines), frame.lineno + context) + 1):
        arrow = "---->" if number == frame.lineno else "     "
        shown.append(f"{arrow} {number:>3} {lines[number - 1].rstrip()}")
    return "\n".join(shown)

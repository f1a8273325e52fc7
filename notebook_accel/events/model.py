"""What happens in a run: the events that workers send to the kernel.

Plain data, standard library only. Events travel in one direction, from a worker to the kernel.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Started:
    """A rank is about to call the user's function."""

    rank: int
    pid: int
    device: str
    num_threads: int


@dataclass(frozen=True)
class Output:
    """Whole lines that a rank wrote to its stdout or stderr, without a tag.

    ``announced`` marks lines of ``accelerator.print``: they speak for the run, not for a rank.
    """

    rank: int
    stream: str
    text: str
    announced: bool = False


@dataclass(frozen=True)
class Display:
    """A rich output (``display()``, a widget message) to be republished by the kernel."""

    rank: int
    msg_type: str
    content: dict[str, Any]
    metadata: dict[str, Any]
    buffers: list[bytes] = field(default_factory=list)


@dataclass(frozen=True)
class Metrics:
    """Points of named series: (name, optimizer step, value)."""

    rank: int
    points: list[tuple[str, int, float]]


@dataclass(frozen=True)
class Progress:
    """Where a rank is in its training loop; only the newest one matters.

    ``step`` counts finished optimizer steps, ``epoch`` passes over the training loader (from 0),
    ``batch`` of ``num_batches`` (None when unknown) batches of this pass have been taken. The run's
    own work began at ``from_step``, that of a checkpoint or of an earlier cell: since then
    ``samples`` training samples have been seen by this rank (those that several ranks see together
    count on the first of them), and it has waited ``data_wait_s`` for its loader.
    """

    rank: int
    step: int
    epoch: int = 0
    batch: int = 0
    num_batches: int | None = None
    samples: int = 0
    data_wait_s: float = 0.0
    from_step: int = 0


@dataclass(frozen=True)
class Task:
    """How far something long is that is no training step: saving a checkpoint, broadcasting.

    ``done`` of ``total`` (None when unknown) in ``unit``; over when both are equal. ``rank`` is -1
    for what the kernel itself does. Nothing is said of a task that is over within a second.
    """

    rank: int
    name: str
    done: float
    total: float | None = None
    unit: str = ""


@dataclass(frozen=True)
class Returned:
    """A rank's function returned (or was stopped); its encoded value lies in its result file."""

    rank: int
    num_bytes: int
    stopped: bool = False


@dataclass(frozen=True)
class LeftBehind:
    """Variables that ``function`` changed in its worker only: (name, before, after)."""

    rank: int
    function: str
    filename: str
    line: int
    changes: list[tuple[str, str, str]]


@dataclass(frozen=True)
class Stuck:
    """It is proven that the ranks wait for each other for ever. Made by the kernel."""


@dataclass(frozen=True)
class Lost:
    """Another machine of the run is gone. Made by the kernel."""

    machine: str


@dataclass(frozen=True)
class Frame:
    """One line of a worker's traceback, newest last."""

    filename: str
    lineno: int
    name: str
    line: str


@dataclass(frozen=True)
class Landmark:
    """A line of the person's code that calls a collective, told once; see ``events.pulse``.

    ``call`` is the name of what the line calls.
    """

    rank: int
    number: int
    call: str
    frame: Frame


@dataclass(frozen=True)
class Cause:
    """An exception that led to another one."""

    type_name: str
    message: str
    frames: list[Frame]


@dataclass(frozen=True)
class Failed:
    """A rank's function raised. ``num_bytes`` of its result file hold the encoded exception.

    ``causes`` led to it, oldest first. ``is_comm`` marks an error that a peer's death explains
    ("connection closed by peer").
    """

    rank: int
    type_name: str
    message: str
    frames: list[Frame]
    text: str
    is_comm: bool = False
    num_bytes: int = 0
    causes: list[Cause] = field(default_factory=list)


@dataclass(frozen=True)
class Exited:
    """A rank's process ended: its exit code, negative for a signal. Made by the kernel.

    ``by_us`` says that the launcher ended it, as the last stair of a stop.
    """

    rank: int
    code: int
    by_us: bool = False


def signal_name(number: int) -> str:
    """Name a signal: "SIGKILL", or "signal 40" for one of the real-time ones, which have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


Event = (
    Started
    | Output
    | Display
    | Metrics
    | Progress
    | Task
    | Returned
    | LeftBehind
    | Landmark
    | Failed
    | Stuck
    | Lost
    | Exited
)

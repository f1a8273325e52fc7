"""Where a worker sits: who it is and the descriptors that tie it to the kernel.

A ``Lane`` is the kernel's end of the same ties. Both are made before the start, so that fork,
forkserver and spawn differ only in how the process comes to be.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

from notebook_accel.config.placement import Placement
from notebook_accel.launch.memory import anonymous_file

FDS = ("stdout", "stderr", "events", "result", "stacks", "flags", "store")


@dataclass(frozen=True)
class Seat:
    """What one worker is given. Descriptors are the worker's ends; ``store`` is -1 but for rank 0.

    ``env`` holds what is set in the worker's environment; ``settings`` what the launch was given
    explicitly (see ``events.context``); ``parent`` is the process that starts the worker.
    """

    placement: Placement
    num_threads: int
    env: dict[str, str]
    settings: dict[str, Any]
    in_notebook: bool
    parent: int = 0
    stdout: int = -1
    stderr: int = -1
    events: int = -1
    result: int = -1
    stacks: int = -1
    flags: int = -1
    store: int = -1

    def fds(self) -> list[int]:
        """The descriptors in the order of ``FDS``, without an absent store."""
        return [fd for name in FDS if (fd := getattr(self, name)) >= 0]

    def with_fds(self, fds: list[int]) -> Seat:
        """The same seat with descriptors as they are numbered in another process."""
        present = [name for name in FDS if getattr(self, name) >= 0]
        numbers: dict[str, Any] = dict(zip(present, fds, strict=True))
        return replace(self, **numbers)


@dataclass
class Lane:
    """The kernel's ends for one rank: what to read, and the worker's ends until it has started."""

    rank: int
    stdout: int
    stderr: int
    events: int
    result: int
    stacks: int
    theirs: list[int] = field(default_factory=list)

    def close_theirs(self) -> None:
        """Close the worker's pipe ends in the kernel, so that their end can be seen."""
        for fd in self.theirs:
            os.close(fd)
        self.theirs.clear()

    def close(self) -> None:
        """Close everything the kernel still holds."""
        self.close_theirs()
        for fd in (self.result, self.stacks):
            os.close(fd)


def open_lane(seat: Seat, flags: int, store: int) -> tuple[Lane, Seat]:
    """Make the pipes and files of one rank; give the kernel's ends and the completed seat."""
    stdout, their_stdout = os.pipe()
    stderr, their_stderr = os.pipe()
    events, their_events = os.pipe()
    for fd in (stdout, stderr, events):
        os.set_blocking(fd, False)
    result = anonymous_file("result")
    stacks = anonymous_file("stacks")
    theirs = [their_stdout, their_stderr, their_events]
    seat = replace(
        seat,
        stdout=their_stdout,
        stderr=their_stderr,
        events=their_events,
        result=result,
        stacks=stacks,
        flags=flags,
        store=store if seat.placement.rank == 0 else -1,
    )
    return Lane(seat.placement.rank, stdout, stderr, events, result, stacks, theirs), seat

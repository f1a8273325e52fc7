"""What the kernel can see of a rank at any moment: a few words of shared memory, one slot a rank.

A rank that waits for another cannot send an event, so it writes down where it is going *before*
it goes: stores into memory, no system call. A line of code that calls a collective is told once,
as a ``Landmark`` event; from then on its number is enough.

    word 0  collectives entered, backward passes that average gradients included
         1  the same, left
         2  what was entered last, an index of KINDS
         3  the number of its landmark
         4  how many bytes this rank brings
         5  how many of word 0 were backward passes
         6  the group of ranks that meet there, a number made of its name; 0 is all ranks
         7  how many ranks of this machine are in the group; 0 is all of them
"""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType

from notebook_accel.events.lines import THE_PERSON, US, owner_of
from notebook_accel.events.model import Frame, Landmark

ENTERED, LEFT, KIND, LANDMARK, NUM_BYTES, NUM_BACKWARD, GROUP, NUM_MEMBERS = range(8)
NUM_WORDS = 8  # 8 bytes each: a cache line
_SLOT = struct.Struct("8q")

KINDS = (
    "",
    "barrier",
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "broadcast",
    "broadcast_object_list",
    "scatter",
    "backward",
    "forward",
    "reduce",
    "gather",
    "reduce_scatter",
    "all_to_all",
    "send",
    "recv",
    "its return",
)
BACKWARD = KINDS.index("backward")
FORWARD = KINDS.index("forward")
RETURN = KINDS.index("its return")
# Kinds that some ranks can leave while others are still on their way in.
ONE_SIDED = {"broadcast", "broadcast_object_list", "scatter", "forward", "reduce", "gather"}
# Kinds that two ranks have with each other, whatever the rest does.
IN_PAIRS = {"send", "recv"}

# What the person's line calls, where its name says nothing to them.
_SPOKEN = {
    "_walk": "the loader",
    "__iter__": "the loader",
    "__call__": "forward",
    "step": "optimizer.step",
    "__init__": "joining the ranks",
}
# From ``enter`` over ``Engine.backward`` and ``Accelerator.backward`` to the person's line. Only a
# known line is taken from there, so that a wrong guess costs time and nothing else.
_LIKELY_DEPTH = 3


@dataclass(frozen=True)
class Beat:
    """One reading of a slot.

    ``entered`` counts collectives and backward passes, ``num_backward`` those that were backward
    passes; ``kind`` is the newest one and ``inside`` whether the rank is still in it. ``group`` is
    who meets there, ``num_members`` of them on this machine (0: all ranks).
    """

    entered: int = 0
    inside: bool = False
    kind: str = ""
    landmark: int = 0
    num_bytes: int = 0
    num_backward: int = 0
    group: int = 0
    num_members: int = 0

    @staticmethod
    def read(words: tuple[int, ...]) -> Beat:
        """Make sense of the words of a slot."""
        entered = words[ENTERED]
        return Beat(
            entered,
            entered != words[LEFT],
            KINDS[words[KIND]],
            words[LANDMARK],
            words[NUM_BYTES],
            words[NUM_BACKWARD],
            words[GROUP],
            words[NUM_MEMBERS],
        )


class Pulse:
    """A rank's own slot: ``enter`` before a collective, ``leave`` after it.

    A collective that fails is never left: that is where the rank's story ended, until it enters
    the next one. ``tell`` sends a landmark to the kernel. ``quiet`` says that what goes on now is
    part of what was entered; ``left_ns`` is when this rank left a collective last, by the clock
    that all processes of a machine share.
    """

    __slots__ = (
        "_entered",
        "_kept",
        "_landmarks",
        "_num_backward",
        "_rank",
        "_slot",
        "_tell",
        "_whose",
        "_words",
        "left_ns",
        "quiet",
    )

    def __init__(self, rank: int, slot: memoryview, tell: Callable[[Landmark], None]) -> None:
        self._rank = rank
        self._slot = slot
        self._words = slot.cast("q")
        self._tell = tell
        self._entered = 0
        self._num_backward = 0
        self.quiet = False
        self.left_ns = 0
        # By id, for a code object computes its hash anew each time; by instruction, for a frame
        # looks for its line number from the start of the function each time.
        self._landmarks: dict[tuple[int, int], int] = {}
        self._whose: dict[int, int] = {}
        self._kept: list[CodeType] = []  # so that no id is given to another

    def enter(self, kind: int, num_bytes: int = 0, group: int = 0, num_members: int = 0) -> None:
        """Note that the collective ``kind`` begins, called from the person's line.

        ``group`` and ``num_members`` are as in a Beat.

        Units: ``num_bytes`` is what this rank brings.
        """
        here = sys._getframe(_LIKELY_DEPTH)
        landmark = self._landmarks.get((id(here.f_code), here.f_lasti))
        if landmark is None:
            landmark = self._landmark(sys._getframe(1))
        before = self._entered
        self._entered = before + 1
        if kind == BACKWARD:
            self._num_backward += 1
        _SLOT.pack_into(
            self._slot,
            0,
            before + 1,
            before,
            kind,
            landmark,
            num_bytes,
            self._num_backward,
            group,
            num_members,
        )

    def came_back(self) -> None:
        """Note that the person's function has returned, and that its return awaits the others'.

        No line of the person is under way: those that lie below are the kernel's, at the fork.
        """
        self._entered += 1
        words = self._entered, self._entered - 1, RETURN, 0, 0, self._num_backward, 0, 0
        _SLOT.pack_into(self._slot, 0, *words)

    @property
    def num_entered(self) -> int:
        """How many collectives this rank entered."""
        return self._entered

    def leave(self) -> None:
        """Note that the newest collective is over."""
        self._words[LEFT] = self._entered
        self.left_ns = time.monotonic_ns()

    def again(self) -> None:
        """Note that the newest collective, begun before, is waited for now."""
        if self._entered:
            self._words[LEFT] = self._entered - 1

    def is_in(self, kind: int) -> bool:
        """Whether the newest collective is a ``kind`` and not over."""
        return self._words[LEFT] != self._entered and self._words[KIND] == kind

    def _landmark(self, frame: FrameType | None) -> int:
        """Number the person's line below ``frame``, and tell of it if it is new."""
        whose = self._whose
        call: CodeType | None = None
        while frame is not None:
            code = frame.f_code
            owner = whose.get(id(code))
            if owner is None:
                owner = whose[id(code)] = owner_of(code.co_filename)
                self._kept.append(code)
            if owner == THE_PERSON:
                number = self._landmarks.get((id(code), frame.f_lasti))
                return self._new(frame, call) if number is None else number
            if owner == US:
                call = code
            frame = frame.f_back
        return 0

    def _new(self, person: FrameType, call: CodeType | None) -> int:
        code = person.f_code
        number = self._landmarks[id(code), person.f_lasti] = len(self._landmarks) + 1
        frame = Frame(code.co_filename, person.f_lineno, code.co_name, "")
        name = "a collective" if call is None else call.co_name
        self._tell(Landmark(self._rank, number, _SPOKEN.get(name, name), frame))
        return number

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
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType

from notebook_accel.events.model import Frame, Landmark

ENTERED, LEFT, KIND, LANDMARK, NUM_BYTES, NUM_BACKWARD = range(6)
NUM_WORDS = 8  # 8 bytes each: a cache line

KINDS = (
    "",
    "barrier",
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "broadcast",
    "broadcast_object_list",
    "backward",
    "forward",
)
BACKWARD = KINDS.index("backward")
FORWARD = KINDS.index("forward")
# Kinds that some ranks can leave while others are still on their way in.
ONE_TO_ALL = {"broadcast", "broadcast_object_list", "forward"}

_THE_PERSON, _US, _BETWEEN = range(3)  # who wrote a line; between: torch, calling or called
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@dataclass(frozen=True)
class Beat:
    """One reading of a slot.

    ``entered`` counts collectives and backward passes, ``num_backward`` those that were backward
    passes; ``kind`` is the newest one and ``inside`` whether the rank is still in it.
    """

    entered: int = 0
    inside: bool = False
    kind: str = ""
    landmark: int = 0
    num_bytes: int = 0
    num_backward: int = 0

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
        )


class Pulse:
    """A rank's own slot: ``enter`` before a collective, ``leave`` after it.

    A collective that fails is never left: that is where the rank's story ended, until it enters
    the next one. ``tell`` sends a landmark to the kernel.
    """

    __slots__ = ("_entered", "_landmarks", "_rank", "_slot", "_tell", "_whose")

    def __init__(self, rank: int, slot: memoryview, tell: Callable[[Landmark], None]) -> None:
        self._rank = rank
        self._slot = slot
        self._tell = tell
        self._entered = 0
        self._landmarks: dict[tuple[CodeType, int], int] = {}
        self._whose: dict[CodeType, int] = {}

    def enter(self, kind: int, num_bytes: int = 0) -> None:
        """Note that the collective ``kind`` begins, called from the person's line.

        Units: ``num_bytes`` is what this rank brings.
        """
        slot = self._slot
        slot[KIND] = kind
        slot[LANDMARK] = self._landmark(sys._getframe(1))
        slot[NUM_BYTES] = num_bytes
        if kind == BACKWARD:
            slot[NUM_BACKWARD] += 1
        self._entered += 1
        slot[ENTERED] = self._entered

    def leave(self) -> None:
        """Note that the newest collective is over."""
        self._slot[LEFT] = self._entered

    def _landmark(self, frame: FrameType) -> int:
        """Number the person's line below ``frame``, and tell of it if it is new."""
        whose = self._whose
        here: FrameType | None = frame
        call = frame.f_code
        while here is not None:
            code = here.f_code
            owner = whose.get(code)
            if owner is None:
                owner = whose[code] = _owner(code.co_filename)
            if owner == _THE_PERSON:
                key = (code, here.f_lineno)
                number = self._landmarks.get(key)
                return self._new(key, call) if number is None else number
            if owner == _US:
                call = code
            here = here.f_back
        return 0

    def _new(self, key: tuple[CodeType, int], call: CodeType) -> int:
        number = self._landmarks[key] = len(self._landmarks) + 1
        code, line = key
        frame = Frame(code.co_filename, line, code.co_name, "")
        self._tell(Landmark(self._rank, number, _spoken(call.co_name), frame))
        return number


def _owner(filename: str) -> int:
    if filename.startswith(_PACKAGE):
        return _US
    between = f"{os.sep}torch{os.sep}" in filename or filename.endswith("contextlib.py")
    return _BETWEEN if between else _THE_PERSON


def _spoken(name: str) -> str:
    """The name of what the person called; generators and wrappers have none of their own."""
    return {"_walk": "the loader", "__iter__": "the loader", "step": "optimizer.step"}.get(
        name, name
    )

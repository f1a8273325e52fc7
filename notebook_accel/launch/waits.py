"""Who waits for whom, and whether that can ever end: the kernel's reading of the ranks' pulses.

A run is called stuck on proof only: every rank of this machine sleeps in a collective or has
returned, in none of these is everybody there whom it is for, and nothing has moved for a while. A
rank that still computes may yet come, however long it takes: it proves nothing and is only shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from notebook_accel.events.model import Landmark
from notebook_accel.events.pulse import IN_PAIRS, ONE_SIDED, Beat
from notebook_accel.launch.failure import place

LOOK_AFTER_S = 0.2
LONGEST_GAP_S = 0.2
PROOF_S = 3.0  # nothing has moved for so long, and
SLOWEST_BYTES_PER_S = 100e6  # so much longer where tensors may still be on their way
SHOW_AFTER_S = 30.0
# Collectives to which every rank must bring as many bytes.
ALIKE = {"all_gather", "all_reduce", "broadcast", "gather", "reduce", "reduce_scatter", "scatter"}


@dataclass
class Wait:
    """One rank's newest beat, since when it has not moved, and the lines that it has told of.

    ``rank`` counts in the whole run; ``slept_s`` is for how long it was seen to sleep since then.
    """

    rank: int = 0
    beat: Beat = field(default_factory=Beat)
    since: float = 0.0
    slept_s: float = 0.0
    cpu_ticks: int = -1
    landmarks: dict[int, Landmark] = field(default_factory=dict)
    returned: bool = False
    shown: int = -1  # the collective that was shown to be slow

    def where(self) -> str:
        """Say in which collective the rank is or was last: "backward at Cell In[7], line 3"."""
        told = self.landmarks.get(self.beat.landmark)
        if told is None:
            return self.beat.kind or "none"
        return f"{told.call} at {place(told.frame)}"


class Waits:
    """Watches the pulses of the local ranks ``ranks``; ``read`` gives the newest beat of one.

    ``alone`` says that there are no ranks on other machines.
    """

    def __init__(self, read: Callable[[int], Beat], ranks: Sequence[int], alone: bool) -> None:
        self.ranks = [Wait(rank) for rank in ranks]
        self._read = read
        self._alone = alone
        self._looked_at = 0.0
        self._gap_s = 0.0

    def told(self, landmark: Landmark) -> None:
        """Take a line that a rank tells of."""
        self.ranks[landmark.rank].landmarks[landmark.number] = landmark

    def look(self, now: float) -> None:
        """Read all pulses; to be called often.

        A longer gap between two looks counts as a short one: a machine that stood still for a
        while (a paused container) has given no rank the time to move.
        """
        self._gap_s = min(now - self._looked_at, LONGEST_GAP_S)
        self._looked_at = now
        for local_rank, wait in enumerate(self.ranks):
            beat = self._read(local_rank)
            if beat != wait.beat:
                wait.beat, wait.since, wait.slept_s, wait.cpu_ticks = beat, now, 0.0, -1

    def stuck(self, now: float, pids: Sequence[int | None]) -> bool:
        """Whether it is proven that no rank can ever go on."""
        inside = [wait for wait in self.ranks if not wait.returned]
        if not inside or not all(wait.beat.inside for wait in inside):
            return False
        if any(now - wait.since < LOOK_AFTER_S for wait in inside if wait.cpu_ticks < 0):
            return False  # the ordinary case: they meet in a moment
        if not self._alone and any(wait.beat.kind in ONE_SIDED | IN_PAIRS for wait in inside):
            return False  # it may wait for a rank of another machine
        if sum(wait.beat.kind in IN_PAIRS for wait in inside) > 1:
            return False  # they may mean each other
        if any(self._is_whole(one, num) for one, num in _meetings(inside).items()):
            return False
        patience_s = PROOF_S + max(wait.beat.num_bytes for wait in inside) / SLOWEST_BYTES_PER_S
        for wait, pid in zip(self.ranks, pids, strict=True):
            if not wait.returned:
                self._count_sleep(wait, pid)
        return all(wait.slept_s >= patience_s for wait in inside)

    def slow(self, now: float) -> str:
        """Say once of each long wait who waits for whom; "" when there is nothing to say."""
        for wait in self.ranks:
            beat = wait.beat
            if not beat.inside or now - wait.since < SHOW_AFTER_S or wait.shown == beat.entered:
                continue
            busy = [
                f"rank {one.rank}, last in {one.where()}"
                for one in self.ranks
                if not one.returned and not one.beat.inside
            ]
            if busy:
                wait.shown = beat.entered
                return (
                    f"note: rank {wait.rank} has waited {SHOW_AFTER_S:.0f} s in {wait.where()} "
                    f"for {'; '.join(busy)}\n"
                )
        return ""

    def _is_whole(self, one: Meeting, num: int) -> bool:
        """Whether all of this machine whom a collective is for are in it."""
        return num == (one.num_members or len(self.ranks))

    def _count_sleep(self, wait: Wait, pid: int | None) -> None:
        """Add to the time that the rank has slept; begin anew if it was awake since the last."""
        ticks = cpu_ticks_asleep(pid) if pid is not None else -1
        if ticks < 0 or ticks != wait.cpu_ticks:
            wait.cpu_ticks, wait.slept_s = ticks, 0.0
        else:
            wait.slept_s += self._gap_s


@dataclass(frozen=True)
class Meeting:
    """What ranks that wait for each other have in common."""

    kind: str
    num_bytes: int
    group: int
    num_members: int


def meeting(beat: Beat) -> Meeting:
    """Say where a rank waits for others."""
    num_bytes = beat.num_bytes if beat.kind in ALIKE else 0
    return Meeting(beat.kind, num_bytes, beat.group, beat.num_members)


def _meetings(waits: list[Wait]) -> Counter[Meeting]:
    return Counter(meeting(wait.beat) for wait in waits)


def cpu_ticks_asleep(pid: int) -> int:
    """The processor time that the threads at work in ``pid`` have used, if they sleep; else -1.

    These are the main thread, those of autograd and those that carry out gloo's collectives.
    Where the system cannot tell (only Linux can), nobody ever sleeps.
    """
    ticks = 0
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            name, _, rest = (task / "stat").read_text().rpartition(")")
            if task.name == str(pid) or "gloo_runloop" in name or "autograd" in name:
                words = rest.split()  # from the thread's state on
                if words[0] != "S":
                    return -1
                ticks += int(words[11]) + int(words[12])
    except OSError:  # it has ended
        return -1
    return ticks

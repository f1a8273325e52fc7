"""How ranks agree to stop: in band, at a boundary that all of them reach.

Each rank sees the stop flag at its own moment; acting on it alone would leave the others waiting
in a collective. So the ranks compare their flags now and then, at boundaries that they count alike,
and agree in the same message on the number of the boundary at which they compare next.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from notebook_accel.errors import StopRun
from notebook_accel.events.context import Flags
from notebook_accel.ranks import watch
from notebook_accel.ranks.world import World

CHECK_INTERVAL_S = 0.5
MAX_GROWTH = 4
# Steps may become slower after an agreement, so the distance to the next is bounded.
MAX_DISTANCE = 1000


class StopAgreement:
    """Raises StopRun on all ranks at the same boundary, soon after any rank's stop flag is set.

    Ranks: all ranks of the run call ``boundary`` in the same order.
    """

    def __init__(self, world: World, flags: Flags | None) -> None:
        self._world = world
        self._flags = flags
        self._alone = world.size == 1
        self._count = 0
        self._distance = 1
        self._next = sys.maxsize if flags is None else 1
        self._checked_at = time.monotonic()
        self._group: dist.ProcessGroup | None = None

    def boundary(self) -> None:
        """Note that this rank is at a boundary; an integer comparison, but for the rare checks.

        Errors: StopRun, once; after it the agreement keeps silent, so that ``finally`` blocks
        may call anything.
        """
        self._count += 1
        if self._count >= self._next:
            self._check()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count no boundary inside the block, where ranks pass unlike numbers of them."""
        before = self._count, self._next
        self._next = sys.maxsize
        try:
            yield
        finally:
            self._count, self._next = before

    def _check(self) -> None:
        assert self._flags is not None
        if self._alone:  # nobody to ask: one byte of shared memory, every time
            stop = self._flags.stop
            self._next = self._count + 1
        else:
            stop, self._distance = self._ask(self._flags.stop)
            self._next = self._count + self._distance
        if stop:
            self._next = sys.maxsize
            raise StopRun(f"the run was stopped at boundary {self._count}")

    def _ask(self, stop: bool) -> tuple[bool, int]:
        """Join flags and proposals of all ranks: anybody's stop, and the smallest distance."""
        now = time.monotonic()
        per_boundary_s = max(now - self._checked_at, 1e-9) / self._distance
        self._checked_at = now
        wanted = int(CHECK_INTERVAL_S / per_boundary_s)
        proposal = max(1, min(wanted, self._distance * MAX_GROWTH, MAX_DISTANCE))
        words = torch.tensor([int(stop), -proposal])
        watch.all_reduce(words, dist.ReduceOp.MAX, group=self._gloo())
        answer, distance = words.tolist()
        # Other numbers come from another collective, in which a rank is that has gone elsewhere:
        # they stop nobody, and whoever watches the ranks tells what happened.
        return answer == 1, min(max(-distance, 1), MAX_DISTANCE)

    def _gloo(self) -> dist.ProcessGroup | None:
        """The default group under gloo; otherwise a side group, made by all at the first check."""
        if not self._world.meets_on_cpu and self._group is None:
            self._group = dist.new_group(backend="gloo")
        return self._group

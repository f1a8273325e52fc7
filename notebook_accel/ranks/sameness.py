"""Whether ranks bring the same, found out without a meeting: through the store that they met by.

A collective would wait for a rank that does not come; the store is asked what is there.
"""

from __future__ import annotations

import itertools
import zlib
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import distributed_c10d

from notebook_accel.ranks.collectives import tensors_of
from notebook_accel.ranks.world import World

MAX_TENSORS = 8
MAX_ELEMENTS = 1024  # of each
_numbers = itertools.count()


class Comparison:
    """One thing of which each rank brings a number; ranks make their comparisons in one order."""

    def __init__(self, world: World) -> None:
        number = next(_numbers)
        self._keys = [f"notebook_accel/same/{number}/{rank}" for rank in range(world.size)]
        self._own = self._keys[world.rank]
        self.is_brought = False

    def bring(self, number: int | None) -> None:
        """Bring this rank's number, None for nothing that could be compared."""
        self.is_brought = True
        distributed_c10d._get_default_store().set(self._own, str(number))

    def are_alike(self, patience_s: float = 0.0) -> bool | None:
        """Whether all ranks brought the same; None if somebody brought nothing (yet)."""
        store = distributed_c10d._get_default_store()
        if patience_s and not store.check(self._keys):
            try:
                store.wait(self._keys, timedelta(seconds=patience_s))
            except RuntimeError:  # not all of them came in time
                return None
        if not store.check(self._keys):
            return None
        brought = {bytes(store.get(key)) for key in self._keys}
        return None if b"None" in brought else len(brought) == 1


def fingerprint(tree: Any) -> int | None:
    """A number for the first tensors of ``tree``; None for none, or for those that say nothing."""
    heads = [
        one.detach().reshape(-1)[:MAX_ELEMENTS].to("cpu", torch.float64)
        for one in tensors_of(tree)[:MAX_TENSORS]
        if one.device.type != "meta"
    ]
    flat = torch.cat(heads) if heads else torch.empty(0)
    if flat.numel() == 0 or bool((flat == flat[0]).all()):
        return None
    return zlib.crc32(flat.numpy().tobytes())

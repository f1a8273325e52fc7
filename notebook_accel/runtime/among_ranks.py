"""One rank among the others: who it is, and what ranks say to each other.

Every collective here is also a boundary at which a run that was asked to stop may end.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from notebook_accel.data.loader import Passes, other_process
from notebook_accel.data.metrics import gather_for_metrics
from notebook_accel.data.shard import split_between
from notebook_accel.events.context import Flags
from notebook_accel.ranks import collectives
from notebook_accel.ranks.stop import StopAgreement
from notebook_accel.ranks.world import World
from notebook_accel.runtime.guards import check_gather
from notebook_accel.runtime.turns import Turns


class AmongRanks(Turns):
    """A rank of ``world``; ``flags`` is how a launched run is asked to stop."""

    _readers: Sequence[int] = ()  # of each rank, where several read the same data
    _joined: Callable[[Any], Any] | None = None  # joins what several ranks have of a sample

    def __init__(self, world: World, flags: Flags | None) -> None:
        self._world = world
        self._stop = StopAgreement(world, flags)
        self._passes = Passes()
        self._pid = os.getpid()

    @property
    def device(self) -> torch.device:
        """The device this rank computes on."""
        return self._world.device

    @property
    def num_processes(self) -> int:
        """How many ranks there are."""
        return self._world.size

    @property
    def process_index(self) -> int:
        """This rank, from 0."""
        return self._world.rank

    @property
    def local_process_index(self) -> int:
        """This rank among those of its machine, from 0."""
        return self._world.placement.local_rank

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0."""
        return self._world.rank == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is the first rank of its machine."""
        return self._world.placement.local_rank == 0

    @property
    def is_last_process(self) -> bool:
        """Whether this is the highest rank."""
        return self._world.rank == self._world.size - 1

    def gather(self, tensor: Any) -> Any:
        """Concatenate tensors (or trees of them) over the ranks along dimension 0.

        Numbers and numpy's arrays become tensors on this rank's device; so they do in the others.

        Shapes: ``[n, ...]`` gives ``[num_processes * n, ...]``, a 0-d tensor ``[num_processes]``.
        Ranks:  all ranks call it, with equal shapes.
        """
        self._boundary()
        check_gather(tensor, self._passes.current, self._world.rank)
        return collectives.gather(tensor, self._world)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Gather what belongs to the samples of this batch, each sample exactly once.

        Samples that were repeated to make ranks even are left out. Tensors and arrays have one row
        a sample, and so has a list as long as the batch that holds no tensors, whatever its rows
        are. Tuples, dicts and other lists hold such parts; a number, a string or None gives a list
        with one entry a rank. ``use_gather_object`` makes every list, tensor and array a list of
        rows, which may have any shapes.

        Ranks: all ranks call it, once a batch.
        """
        self._boundary()
        if self._joined is not None:
            input_data = self._joined(input_data)
        return gather_for_metrics(
            input_data, self._world, self._passes, use_gather_object, self._readers
        )

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Combine tensors elementwise over the ranks: "sum", "mean", "max" or "min".

        Ranks: all ranks call it, with equal shapes.
        """
        self._boundary()
        return collectives.reduce(tensor, self._world, reduction, scale)

    def pad_across_processes(
        self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False
    ) -> Any:
        """Lengthen dimension ``dim`` of tensors to the longest rank's, with ``pad_index``.

        Ranks: all ranks call it.
        """
        self._boundary()
        return collectives.pad_across_processes(tensor, self._world, dim, pad_index, pad_first)

    def wait_for_everyone(self) -> None:
        """Wait until all ranks are here.

        Ranks: all ranks call it.
        """
        self._boundary()
        self._world.wait()

    @contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """Give each rank its part of ``inputs``; ``apply_padding`` makes the parts equally long."""
        yield split_between(inputs, self._world.rank, self._world.size, apply_padding)

    def print(
        self,
        *args: Any,
        sep: str = " ",
        end: str = "\n",
        file: Any = None,
        flush: bool = False,
    ) -> None:
        """Print once for the whole run."""
        if not self.is_main_process:
            return
        announce = getattr(sys.stdout, "announce", None) if file is None else None
        if announce is None:
            builtins.print(*args, sep=sep, end=end, file=file, flush=flush)
        else:
            announce(sep.join(map(str, args)) + end)

    def _boundary(self) -> None:
        self._check_process()
        self._stop.boundary()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise other_process("Accelerator")

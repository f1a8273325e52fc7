"""Collectives that the person calls by torch's own names, noted like ours.

Whatever a call in Python is named (``dist.all_reduce``, imported early or late, by a library, on a
group of some ranks), it comes to a method of torch's process groups, and whoever needs the result
waits for the ``Work`` that this gives. Both are noted there, in launched workers only. Functional
collectives, which DTensor is made of, go past these methods: they are noted at their functions.
What C++ calls by itself is not seen: DDP's gradients (noted as ``backward``), and ``new_group``.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import zlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from notebook_accel.config.placement import Placement
from notebook_accel.events.pulse import KINDS, Pulse

# Methods of a process group: the name that the person reads, and where among the arguments lies
# what this rank brings, where its size must be everybody's.
_METHODS: dict[str, tuple[str, int | None]] = {
    "allreduce": ("all_reduce", 0),
    "allreduce_coalesced": ("all_reduce", None),
    "allgather": ("all_gather", 1),
    "_allgather_base": ("all_gather", 1),
    "all_gather_single": ("all_gather", 1),
    "broadcast": ("broadcast", 0),
    "reduce": ("reduce", 0),
    "gather": ("gather", 1),
    "scatter": ("scatter", 0),
    "reduce_scatter": ("reduce_scatter", 1),
    "_reduce_scatter_base": ("reduce_scatter", 1),
    "reduce_scatter_single": ("reduce_scatter", 1),
    "alltoall": ("all_to_all", None),
    "alltoall_base": ("all_to_all", None),
    "all_to_all_single": ("all_to_all", None),
    "barrier": ("barrier", None),
    "monitored_barrier": ("barrier", None),
    "send": ("send", None),
    "recv": ("recv", None),
    "recv_anysource": ("recv", None),
}

# Functions of torch's functional collectives, which call no method of a process group.
_FUNCTIONS = {
    "all_reduce": "all_reduce",
    "all_gather_single": "all_gather",
    "all_gather_single_autograd": "all_gather",
    "broadcast": "broadcast",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_autograd": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "all_to_all_single_autograd": "all_to_all",
}
_FUNCTIONAL = "torch.distributed._functional_collectives"


def watch_torch(pulse: Pulse, placement: Placement) -> None:
    """Let torch's process groups note in ``pulse`` what the main thread calls; once a process."""
    if not dist.is_available():
        return
    main = threading.get_ident()
    groups = _Groups(placement)

    def is_noted() -> bool:
        return not pulse.quiet and threading.get_ident() == main

    for name, (kind, at) in _METHODS.items():
        method = getattr(dist.ProcessGroup, name, None)
        if method is not None:
            setattr(dist.ProcessGroup, name, _noting(method, kind, at, pulse, groups, is_noted))
    torchs: Any = dist.Work
    torchs.wait = _waiting(torchs.wait, pulse, is_noted)
    functional: Any = sys.modules.get(_FUNCTIONAL)
    if functional is None:  # imported by nobody yet, and it takes long
        return
    for name, kind in _FUNCTIONS.items():
        call = getattr(functional, name, None)
        if call is not None:
            setattr(functional, name, _noting_call(call, kind, pulse, groups, is_noted))
    functional.wait_tensor = _waiting(functional.wait_tensor, pulse, is_noted)


def _waiting(
    wait: Callable[..., Any], pulse: Pulse, is_noted: Callable[[], bool]
) -> Callable[..., Any]:
    @functools.wraps(wait)
    def noted_wait(what: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not is_noted():
            return wait(what, *args, **kwargs)
        pulse.again()
        result = wait(what, *args, **kwargs)
        pulse.leave()
        return result

    return noted_wait


def _noting_call(
    call: Callable[..., Any],
    kind: str,
    pulse: Pulse,
    groups: _Groups,
    is_noted: Callable[[], bool],
) -> Callable[..., Any]:
    number, at = KINDS.index(kind), list(inspect.signature(call).parameters).index("group")

    def noted(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not is_noted():
            return call(*args, **kwargs)
        group = kwargs["group"] if "group" in kwargs else args[at]
        pulse.enter(number, 0, *groups.of_any(group))
        pulse.quiet = True  # one of them calls another
        try:
            result = call(*args, **kwargs)
        finally:
            pulse.quiet = False
        pulse.leave()
        return result

    noted.__code__ = noted.__code__.replace(co_name=kind)
    return functools.update_wrapper(noted, call)


def _noting(
    method: Callable[..., Any],
    kind: str,
    at: int | None,
    pulse: Pulse,
    groups: _Groups,
    is_noted: Callable[[], bool],
) -> Callable[..., Any]:
    number = KINDS.index(kind)

    def noted(group: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_noted():
            return method(group, *args, **kwargs)
        pulse.enter(number, 0 if at is None else _num_bytes(args[at]), *groups.of(group))
        work = method(group, *args, **kwargs)
        pulse.leave()
        return work

    noted.__code__ = noted.__code__.replace(co_name=kind)  # a landmark tells the code's name
    return functools.update_wrapper(noted, method)


class _Groups:
    """Who is in a process group, in the words of a pulse; 0 and 0 for the group of all ranks."""

    def __init__(self, placement: Placement) -> None:
        first = placement.rank - placement.local_rank
        self._here = range(first, first + placement.local_size)
        self._known: dict[str, tuple[int, int]] = {}

    def of_any(self, group: Any) -> tuple[int, int]:
        """Do what ``of`` does for whatever a functional collective takes for a group."""
        if isinstance(group, tuple):
            group = group[0].get_group(group[1])
        elif hasattr(group, "get_group"):
            group = group.get_group()
        return self.of(group) if hasattr(group, "group_name") else (0, 0)

    def of(self, group: Any) -> tuple[int, int]:
        """Give the number of the group, and how many ranks of this machine are in it."""
        name = group.group_name
        known = self._known.get(name)
        if known is None:
            ranks = dist.get_process_group_ranks(group)
            is_all = group is dist.group.WORLD
            members = sum(rank in self._here for rank in ranks)
            known = self._known[name] = (0, 0) if is_all else (zlib.crc32(name.encode()), members)
        return known


def _num_bytes(brought: Any) -> int:
    return sum(map(_num_bytes, brought)) if isinstance(brought, list) else brought.nbytes

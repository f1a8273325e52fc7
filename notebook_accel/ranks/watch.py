"""torch's collectives under a watchful eye: each notes in the rank's pulse that it is in one.

The rest of the worker side calls collectives through here, with torch's own names and arguments:
``watch.all_gather(parts, tensor)``. Outside a launched run nobody looks, and nothing is noted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from notebook_accel.config.placement import FAKE
from notebook_accel.events import context
from notebook_accel.events.pulse import FORWARD, KINDS, RETURN, Pulse
from notebook_accel.ranks.hooks import Hook

_Call = TypeVar("_Call", bound=Callable[..., Any])


def pulse() -> Pulse | None:
    """Where this rank notes what it waits in; None when nobody looks."""
    worker = context.current()
    return None if worker is None else worker.pulse


@contextmanager
def meeting(own: Pulse | None, kind: int) -> Iterator[None]:
    """Note that this rank waits for others inside the block; what it calls there is part of that.

    A block that fails is not left: where a rank's story ended must stay visible. Calls that last
    microseconds write this out: the way to the person's line is shorter then, and known.
    """
    if own is None:
        yield
        return
    if kind == RETURN:
        own.came_back()
    else:
        own.enter(kind)
    own.quiet = True
    try:
        yield
    finally:
        own.quiet = False
    own.leave()  # not in the finally


def watch_forward(
    model: nn.Module, inner: nn.Module, own: Pulse, over: Callable[[nn.Module], bool]
) -> None:
    """Note where forward passes of ``model`` may wait for other ranks: until ``inner``'s begins.

    A pass that finds it ``over`` takes the hooks away.
    """

    def forward(*args: Any) -> None:  # the name that the person reads
        if torch.compiler.is_compiling():
            return
        if over(args[0]):
            for handle in handles:
                handle.remove()
            return
        own.enter(FORWARD)

    def leave(*args: Any) -> None:
        if not torch.compiler.is_compiling() and own.is_in(FORWARD):
            own.leave()

    handles = [
        model.register_forward_pre_hook(Hook(forward)),
        inner.register_forward_pre_hook(Hook(leave)),
        model.register_forward_hook(Hook(leave)),  # where a compiled ``inner`` runs no hooks
    ]


def watch_gathering(part: nn.Module, own: Pulse) -> None:
    """Note where a forward pass waits for other ranks to bring what ``part`` is made of.

    The hooks go around those that ``part`` has already.
    """

    def forward(*args: Any) -> None:  # the name that the person reads
        if not torch.compiler.is_compiling():
            own.enter(FORWARD)

    def leave(*args: Any) -> None:
        if not torch.compiler.is_compiling() and own.is_in(FORWARD):
            own.leave()

    part.register_forward_pre_hook(Hook(forward), prepend=True)
    part.register_forward_pre_hook(Hook(leave))


def all_gather_rows(rows: list[Tensor], own_row: Tensor) -> None:
    """Do what ``all_gather`` does for ``own_row``, less what torch checks before it each time.

    Process groups note by themselves what comes to them (``ranks.raw``).
    """
    work: Any = dist.group.WORLD.allgather([rows], [own_row])  # type: ignore[union-attr]
    work.wait()


def broadcast_object_list(objects: list[Any], src: int, **group: Any) -> None:
    """Give every rank the objects of ``src``; in a layout that is only played each keeps its own.

    (Torch's would look into memory that nobody has written.)
    """
    if dist.get_backend(group.get("group")) != FAKE:
        _broadcast_object_list(objects, src, **group)


def _watched(call: _Call) -> _Call:
    kind = KINDS.index(call.__name__)

    @functools.wraps(call)
    def collective(*args: Any, **kwargs: Any) -> Any:
        own = pulse()
        if own is None:
            return call(*args, **kwargs)
        own.enter(kind, sum(one.nbytes for one in args if isinstance(one, Tensor)))
        own.quiet = True
        try:
            result = call(*args, **kwargs)
        finally:
            own.quiet = False
        own.leave()
        return result

    return collective  # type: ignore[return-value]


all_gather = _watched(dist.all_gather)
all_gather_object = _watched(dist.all_gather_object)
all_reduce = _watched(dist.all_reduce)
barrier = _watched(dist.barrier)
broadcast = _watched(dist.broadcast)
_broadcast_object_list = _watched(dist.broadcast_object_list)
scatter = _watched(dist.scatter)

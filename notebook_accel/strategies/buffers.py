"""Buffers that follow the first reader's: statistics of batches, counters, running means.

Each rank's forwards change its own. DDP brings those of the first rank to all before each forward
that follows one whose gradients are averaged; here other engines do the same, so that a model is
one model also in evaluation, and the same one under every strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from notebook_accel.events.pulse import FORWARD, Pulse
from notebook_accel.ranks import watch
from notebook_accel.ranks.hooks import Hook


class Following:
    """Brings ``buffers`` from the first rank of each of ``groups`` to its others, when it is due.

    A group that is None is all ranks.
    """

    def __init__(
        self,
        buffers: Callable[[], Iterable[Tensor]],
        groups: Sequence[Any],
        device: torch.device,
    ) -> None:
        self._buffers = buffers
        self._groups = groups
        self._device = device
        self._is_due = True

    def before_forward(self, syncs: bool) -> None:
        """Bring them, if the forward before trained; ``syncs`` says whether this one is to.

        Ranks: all ranks of the groups call it.
        """
        if self._is_due:
            for group in self._groups:
                bring(self._buffers(), group, self._device)
        self._is_due = syncs and torch.is_grad_enabled()


def follow_first(
    model: nn.Module,
    group: Any,
    device: torch.device,
    syncs: Callable[[], bool],
    pulse: Pulse | None,
) -> None:
    """Let the buffers of ``model`` follow those of the first rank of ``group``, at its forwards.

    Ranks: all ranks of ``group`` call it, and the model.
    """
    places = [(module, name) for module in model.modules() for name in module._buffers]
    if not places:
        return

    def buffers() -> list[Tensor]:
        found = (module._buffers.get(name) for module, name in places)
        return [one for one in found if one is not None]

    following = Following(buffers, (group,), device)

    def forward(*args: Any) -> None:  # the name that the person reads
        with watch.meeting(pulse, FORWARD):
            following.before_forward(syncs())

    hook = Hook(torch.compiler.disable(forward))  # type: ignore[no-untyped-call]
    model.register_forward_pre_hook(hook, prepend=True)


def bring(buffers: Iterable[Tensor], group: Any, device: torch.device) -> None:
    """Give ``buffers`` the values that the first rank of ``group`` has, in one message a dtype.

    They change unseen by autograd, as batch norms change theirs: two forwards may come before a
    backward.

    Ranks: all ranks of ``group`` call it, with buffers of the same shapes.
    """
    source = 0 if group is None else dist.get_global_rank(group, 0)
    alike: dict[torch.dtype, list[Tensor]] = {}
    for one in buffers:
        local = one.to_local() if isinstance(one, DTensor) else one
        if not local.is_meta:
            alike.setdefault(local.dtype, []).append(local.data)
    for dtype, several in alike.items():
        flat = torch.cat([one.reshape(-1) for one in several]).to(device)
        flat = flat.view(torch.uint8) if dtype is torch.bool else flat
        dist.broadcast(flat, source, group=group)
        flat = flat.view(dtype)
        parts = torch.split(flat, [one.numel() for one in several])
        for one, part in zip(several, parts, strict=True):
            one.copy_(part.view_as(one))

"""Several tensors in one collective: a gather's time is its latency, until tensors are large.

    tensors ──copy──▶ one row of bytes ──all_gather──▶ a row from each rank ──copy──▶ joined tensors

The rows are kept for the next tensors of the same shapes: a loop gathers alike ones every time.
"""

from __future__ import annotations

import functools
import zlib
from typing import Any

import torch
from torch import Tensor

from notebook_accel.ranks import watch
from notebook_accel.ranks.alike import check_alike
from notebook_accel.ranks.world import World

# Larger ones are sent alone, where copying would take longer than a collective's latency.
MAX_BYTES = 2**18
# Rows of less are as long as this one, in which it takes no longer: unlike tensors then come to
# the stamps, that can name their shapes, while gloo would end the process.
_LEAST_BYTES = 2**12
_ALIGNMENT = 16  # that of the widest dtype, so that bytes can be seen as any


class Parcel:
    """A row of bytes for tensors of some ``kinds`` (shape and dtype), and room for every rank's."""

    def __init__(self, kinds: tuple[Any, ...], size: int, device: torch.device) -> None:
        ends = [_ALIGNMENT]  # in front: a number that stands for the kinds
        for shape, dtype in kinds:
            num_bytes = max(1, shape.numel() * dtype.itemsize)
            ends.append(ends[-1] + -(-num_bytes // _ALIGNMENT) * _ALIGNMENT)
        if device.type == "cpu":  # elsewhere nobody reads the stamps
            ends[-1] = max(ends[-1], _LEAST_BYTES)
        with torch.inference_mode(False):  # what is made inside cannot be written to outside
            self.sent = torch.zeros(ends[-1], dtype=torch.uint8, device=device)
            received = torch.zeros(size, ends[-1], dtype=torch.uint8, device=device)
            self.rows = list(received.unbind(0))
            stamp = zlib.crc32(repr(kinds).encode()) >> 1
            self.sent[:4].view(torch.int32)[0] = stamp
            self.stamps = received[:, :4].view(torch.int32)
            self.right_stamps = [[stamp]] * size
            self.outgoing, self.incoming = [], []
            for (shape, dtype), start in zip(kinds, ends, strict=False):
                end = start + shape.numel() * dtype.itemsize
                self.outgoing.append(self.sent[start:end].view(dtype).view(shape))
                self.incoming.append(
                    received[:, start:end].view(dtype).view(size, *shape).unbind(0)
                )

    def send(self, tensors: list[Tensor]) -> list[Tensor]:
        """Exchange ``tensors`` for everybody's, joined along dimension 0."""
        for place, tensor in zip(self.outgoing, tensors, strict=True):
            place.copy_(tensor)
        watch.all_gather_rows(self.rows, self.sent)
        # Not on a GPU, which would have to be waited for.
        if self.stamps.is_cpu and self.stamps.tolist() != self.right_stamps:
            check_alike("gather", tensors, len(self.rows))  # it differs on all ranks: all come here
        # Copies: the row is written again by the next gather.
        return [
            torch.cat(everybody).to(tensor.device)
            for everybody, tensor in zip(self.incoming, tensors, strict=True)
        ]


_kept = functools.lru_cache(maxsize=8)(Parcel)


def gather_tensors(tensors: list[Tensor], world: World) -> list[Tensor]:
    """Concatenate each tensor over the ranks along dimension 0, small ones in one collective.

    Shapes: ``[n, ...]`` on each rank gives ``[size * n, ...]``; a 0-d tensor gives ``[size]``.
    Ranks:  all ranks call it, with equal shapes and dtypes; all get the whole.
    Errors: DistributedOperationException where small ones differ; large ones end the run.
    """
    tensors = [one.detach() if one.requires_grad else one for one in tensors]
    tensors = [one if one.shape else one.reshape(1) for one in tensors]
    if world.size == 1 or not tensors:
        return tensors
    device = world.wire
    kinds = tuple((one.shape, one.dtype) for one in tensors)
    if sum(one.nbytes for one in tensors) <= MAX_BYTES:
        return _kept(kinds, world.size, device).send(tensors)
    return [
        Parcel((kind,), world.size, device).send([one])[0]
        for kind, one in zip(kinds, tensors, strict=True)
    ]

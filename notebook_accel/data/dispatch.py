"""Reading by rank 0 for all ranks: each gets its own batch, whatever a batch is made of.

One scatter a step, of as many bytes for each rank as the largest batch so far has needed. Whatever
goes wrong on rank 0 goes to every rank in place of its batch, so that no rank is left waiting.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from notebook_accel.data.shard import Share
from notebook_accel.data.stream import Dealt
from notebook_accel.errors import RuntimeMisuse
from notebook_accel.ranks import watch
from notebook_accel.ranks.collectives import all_objects, bytes_of
from notebook_accel.ranks.world import World

_HEAD = struct.Struct("qq")  # bytes that the largest parcel needs, bytes of this one
_FIRST_ROOM = 1 << 14
_END = object()


class Dispatch:
    """Deals what rank 0 reads; ``data_rank`` is whose batches this rank gets.

    Ranks: all ranks make it together, and take every step together.
    """

    def __init__(self, world: World, data_rank: int) -> None:
        self.reads = world.rank == 0
        self._world = world
        self._data_ranks: list[int] = all_objects(data_rank, world)
        self._room = _FIRST_ROOM
        self._mine = self._for_all = bytearray()
        # Batches are made on the CPU: they travel there too.
        self._group = None if world.meets_on_cpu else dist.new_group(backend="gloo")

    def deal(self, groups: Iterator[Dealt] | None) -> Iterator[Dealt]:
        """Yield this rank's batches; rank 0 gives ``groups``, with one batch a reader in each.

        Errors: what reading raised on rank 0, on every rank.
        """
        if groups is None:
            return self._receive()
        return self._read_for_all(groups)

    def _read_for_all(self, groups: Iterator[Dealt]) -> Iterator[Dealt]:
        upcoming = self._next(groups)
        if upcoming is _END:
            self._send([None] * self._world.size)
        while upcoming is not _END:
            group = upcoming
            upcoming = self._next(groups)  # one ahead: the last batch is to be known as such
            parcels = [self._parcel(group, reader, upcoming) for reader in self._data_ranks]
            self._send([(parcel, upcoming is _END) for parcel in parcels])
            yield replace(parcels[0], state=group.state)

    def _next(self, groups: Iterator[Dealt]) -> Any:
        try:
            return next(groups, _END)
        except Exception as error:
            self._send([_travelling(error)] * self._world.size)
            raise

    def _parcel(self, group: Dealt, reader: int, upcoming: Any) -> Dealt:
        is_last = upcoming is _END or _of(upcoming, reader) is None
        return Dealt(_of(group, reader), group.share, is_last)

    def _receive(self) -> Iterator[Dealt]:
        over = False
        while not over:
            taken = self._take()
            if isinstance(taken, Exception):
                raise taken
            if taken is None:  # there was nothing to read
                return
            parcel, over = taken
            if parcel.content is not None:
                yield parcel

    def _send(self, parcels: list[Any]) -> None:
        """Give every other rank its parcel."""
        try:
            packed = [[], *map(_packed, parcels[1:])]
        except Exception as error:
            failure = _unsendable(error)
            self._send([failure] * self._world.size)
            raise failure from error
        longest = max(sum(part.nbytes for part in one) for one in packed)
        if longest > self._room:
            self._scatter([[] for _ in packed], longest)
        self._scatter(packed, longest)

    def _take(self) -> Any:
        """This rank's parcel."""
        content = self._scatter(None, 0)
        if content is None:  # it was only the word that more room is needed
            content = self._scatter(None, 0)
        assert content is not None
        return _unpacked(content)

    def _scatter(self, packed: list[list[memoryview]] | None, longest: int) -> memoryview | None:
        """One scatter; gives what came, or None if the room is too small, which grows then."""
        mine, for_all = self._buffers(self._world.size if packed is not None else 0)
        slot = len(mine)
        for rank, parts in enumerate(packed or ()):
            at = rank * slot
            _HEAD.pack_into(for_all, at, longest, sum(part.nbytes for part in parts))
            at += _HEAD.size
            for part in parts:
                for_all[at : at + part.nbytes] = part
                at += part.nbytes
        received = torch.frombuffer(mine, dtype=torch.uint8)
        sent = None
        if packed is not None:
            slots = torch.frombuffer(for_all, dtype=torch.uint8).view(len(packed), slot)
            sent = list(slots.unbind())
        watch.scatter(received, sent, src=0, group=self._group)
        needed, length = _HEAD.unpack_from(mine)
        if needed > self._room:
            self._room = needed + needed // 4
            return None
        return memoryview(mine)[_HEAD.size : _HEAD.size + length]

    def _buffers(self, num_slots: int) -> tuple[bytearray, bytearray]:
        """Where this rank's parcel comes in, and the slots that go out; kept from step to step."""
        slot = _HEAD.size + self._room
        if len(self._mine) != slot:
            self._mine, self._for_all = bytearray(slot), bytearray(slot * num_slots)
        return self._mine, self._for_all


def grouped(batches: Iterator[Any], record: deque[Share]) -> Iterator[Dealt]:
    """Put batches that come one after the other together into steps."""
    for first in batches:
        share = record.popleft()
        rest = [next(batches) if rows else None for rows in share.rows[1:]]
        yield Dealt([first, *rest], share)


def _of(group: Dealt, reader: int) -> Any:
    return group.content[reader] if reader < len(group.content) else None


class _Pickler(pickle.Pickler):
    """Pickles plain tensors by their bytes, which are not copied: much faster than torch's way."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not Tensor or obj.layout is not torch.strided or obj.is_quantized:
            return NotImplemented
        content = pickle.PickleBuffer(bytes_of(obj)) if obj.numel() else b""
        return _tensor, (content, obj.dtype, obj.shape)


def _tensor(content: Any, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    if not len(content):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(content, dtype=dtype).view(shape)


def _packed(parcel: Any) -> list[memoryview]:
    """A parcel in parts: how long they are, the pickle, and the bytes of tensors and arrays."""
    file = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    _Pickler(file, 5, buffer_callback=buffers.append).dump(parcel)
    parts = [file.getbuffer(), *(one.raw() for one in buffers)]
    lengths = struct.pack(f"{len(parts) + 1}q", len(parts), *(part.nbytes for part in parts))
    return [memoryview(lengths), *parts]


def _unpacked(content: memoryview) -> Any:
    (count,) = struct.unpack_from("q", content)
    lengths = struct.unpack_from(f"{count}q", content, 8)
    at = 8 * (count + 1)
    parts = []
    for length in lengths:
        parts.append(content[at : at + length])
        at += length
    return pickle.loads(parts[0], buffers=[bytearray(part) for part in parts[1:]])


def _travelling(error: Exception) -> Exception:
    """The same error where it can travel, else one that tells of it."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeMisuse(
            f"rank 0 could not read the next batch: {type(error).__name__}: {error}",
            "rank 0 reads for all ranks (dispatch_batches), so no rank has a batch",
            "see rank 0's own error; it stands in your dataset or collate function",
        )
    return error


def _unsendable(error: Exception) -> RuntimeMisuse:
    return RuntimeMisuse(
        f"a batch cannot travel from rank 0 to the others: {type(error).__name__}: {error}",
        "rank 0 reads for all ranks (dispatch_batches) and sends each its batch as a pickle",
        "make batches of plain values and tensors, or let each rank read for itself: "
        "DataLoaderConfiguration(dispatch_batches=False)",
    )

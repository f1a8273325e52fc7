"""Curves as bytes: frames of points, one after the other, that can be appended to and cut off.

A frame: rank and length of the name (2 bytes each), number of points (4 bytes), the name, then all
steps and all values, 8 bytes each. Written as this machine orders its bytes.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from itertools import compress

from notebook_accel.events.history import History

_FRAME = struct.Struct("<HHI")


def frame(rank: int, name: str, steps: array[int], values: array[float]) -> bytes:
    """Write points of one series of one rank."""
    raw = name.encode(errors="replace")[:65535]  # half a character must not end the record
    return b"".join(
        (_FRAME.pack(rank, len(raw), len(steps)), raw, steps.tobytes(), values.tobytes())
    )


def frames(data: bytes) -> Iterator[tuple[int, str, array[int], array[float]]]:
    """Give the frames that are whole; the last one may have been cut off by a kill."""
    at = 0
    while at + _FRAME.size <= len(data):
        rank, name_size, num_points = _FRAME.unpack_from(data, at)
        start = at + _FRAME.size + name_size
        middle, at = start + 8 * num_points, start + 16 * num_points
        if at > len(data):
            return
        steps, values = array("q"), array("d")
        steps.frombytes(data[start:middle])
        values.frombytes(data[middle:at])
        yield rank, data[start - name_size : start].decode(errors="replace"), steps, values


def thinned(data: bytes, stride: int) -> bytes:
    """Keep the points whose step ``stride`` divides: the same ones of every rank."""
    columns: dict[tuple[int, str], tuple[array[int], array[float]]] = {}
    for rank, name, steps, values in frames(data):
        kept = columns.setdefault((rank, name), (array("q"), array("d")))
        keep = [step % stride == 0 for step in steps]
        kept[0].extend(compress(steps, keep))
        kept[1].extend(compress(values, keep))
    return b"".join(frame(rank, name, *both) for (rank, name), both in columns.items())


def means(history: History, max_bytes: int) -> bytes:
    """The settled curves, as if one rank had reported them; thinned if they are too long."""
    data = b"".join(
        frame(0, name, array("q", history.steps(name)), array("d", history[name]))
        for name in history
    )
    stride = 1
    while len(data) > max_bytes:
        stride *= 2
        data = thinned(data, stride)
    return data

"""Memory that two processes share by descriptor: files without a name, and the page of flags.

Never /dev/shm by name: containers limit it to 64 MB and answer more with SIGBUS.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import tempfile

from notebook_accel.events.pulse import NUM_WORDS, Beat


def anonymous_file(label: str) -> int:
    """Make an empty file that only descriptors reach; return its descriptor.

    On Linux it lives in memory (memfd); elsewhere it is an unlinked temporary file.
    """
    if sys.platform == "linux":
        return os.memfd_create(f"notebook_accel-{label}", os.MFD_CLOEXEC)
    fd, path = tempfile.mkstemp(prefix="notebook_accel-")
    os.unlink(path)
    return fd


def map_privately(fd: int) -> memoryview:
    """Map the file behind ``fd`` so that writes stay in this process; b"" for an empty file.

    The mapping lives as long as something refers to it; ``fd`` may be closed at once.
    """
    size = os.fstat(fd).st_size
    if size == 0:
        return memoryview(b"")
    return memoryview(
        mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    )


class FlagPage:
    """The one way down into a running worker: a shared page whose bytes are questions.

    Byte 0 is *stop*. The kernel writes, workers read; a read costs a byte load.
    """

    def __init__(self, fd: int, create: bool = False) -> None:
        if create:
            os.ftruncate(fd, mmap.PAGESIZE)
        self._page = mmap.mmap(fd, mmap.PAGESIZE)

    @property
    def stop(self) -> bool:
        """True once the run was asked to stop."""
        return self._page[0] != 0

    def ask_stop(self) -> None:
        """Ask every rank to stop at the next step they agree on."""
        self._page[0] = 1

    def close(self) -> None:
        """Unmap the page, which also keeps a descriptor; it must not be asked any more."""
        self._page.close()


class PulsePage:
    """The one way up out of a rank that waits: a slot of words for each rank, after the flags.

    Ranks count on this machine. Each writes its own slot; the kernel reads whenever it likes.
    """

    def __init__(self, fd: int, num_ranks: int, create: bool = False) -> None:
        self._format = struct.Struct(f"{NUM_WORDS}q")
        if create:
            os.ftruncate(fd, mmap.PAGESIZE + num_ranks * self._format.size)
        self._page = mmap.mmap(fd, num_ranks * self._format.size, offset=mmap.PAGESIZE)

    def slot(self, rank: int) -> memoryview:
        """Give the words of ``rank`` to write; the page must then stay open."""
        start = rank * self._format.size
        return memoryview(self._page)[start : start + self._format.size]

    def read(self, rank: int) -> Beat:
        """Look where ``rank`` is now."""
        return Beat.read(self._format.unpack_from(self._page, rank * self._format.size))

    def close(self) -> None:
        """Unmap the page."""
        self._page.close()


def room_for_ranks(fd: int, num_ranks: int, num_bytes: int) -> memoryview:
    """Map what ranks of a machine tell each other, after the pulses: ``num_bytes`` for each.

    Whoever maps it first makes the room.
    """
    pulses = num_ranks * NUM_WORDS * 8
    start = mmap.PAGESIZE * (1 + -(-pulses // mmap.PAGESIZE))
    size = num_ranks * num_bytes
    if os.fstat(fd).st_size < start + size:
        os.ftruncate(fd, start + size)
    return memoryview(mmap.mmap(fd, size, offset=start))

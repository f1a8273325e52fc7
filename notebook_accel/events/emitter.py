"""The worker's pen: cheap to hold in a training loop, never stalls it, never loses the end.

Numbers are kept and sent together, at most 20 times a second. When the kernel is slow and the
pipe is full, older points are thinned by a fixed rule (every second optimizer step), the same on
every rank, so that averages over ranks stay whole. Everything else is sent at once and waits.

Frame on the wire: 4 bytes length (big endian), then one pickled event.
"""

from __future__ import annotations

import os
import pickle
import select
import struct
import time
from collections.abc import Callable
from typing import Any

from notebook_accel.events.model import Metrics

FLUSH_INTERVAL_S = 0.05
MAX_POINTS = 20_000
_HEADER = struct.Struct("!I")


class Emitter:
    """Writes the events of one rank to its pipe; ``rank`` counts on this machine, as in events."""

    def __init__(self, rank: int, fd: int) -> None:
        self.rank = rank
        self._fd = fd
        self._pid = os.getpid()
        self._points: list[tuple[str, int, float]] = []
        self._where: Callable[[], list[Any]] | None = None  # news of where the loop is
        self._unsent = b""
        self._stride = 1
        self._due = 0.0
        if fd >= 0:  # a pen that draws where it is has no pipe
            os.set_blocking(fd, False)

    def metric(self, name: str, step: int, value: float) -> None:
        """Note one point of the series ``name``: ``value`` at optimizer step ``step``."""
        if step % self._stride == 0:
            self._points.append((name, step, value))
        if time.monotonic() >= self._due:
            self.flush()

    def stepped(
        self, step: int, means: list[tuple[str, float]], where: Callable[[], list[Any]]
    ) -> None:
        """Note the end of optimizer step ``step``: a point of each series, and where the loop is.

        ``where`` is asked for its events when it is time to send: only the newest ones matter.
        """
        if step % self._stride == 0:
            for name, value in means:
                self._points.append((name, step, value))
        self._where = where
        if time.monotonic() >= self._due:
            self.flush()

    def send(self, event: Any, deadline_s: float = 30.0) -> None:
        """Send ``event`` now, after everything noted so far; waits for the kernel if it must."""
        self._queue_notes()
        self._queue(event)
        self._write(time.monotonic() + deadline_s)

    def flush(self) -> None:
        """Send what was noted, as far as the pipe takes it without waiting."""
        now = time.monotonic()
        self._due = now + FLUSH_INTERVAL_S
        if not self._unsent:
            self._queue_notes()
        self._write(now)
        if len(self._points) > MAX_POINTS:
            self._thin()

    def _queue_notes(self) -> None:
        if self._points:
            self._queue(Metrics(self.rank, self._points))
            self._points = []
        if self._where is not None:
            for event in self._where():
                self._queue(event)
            self._where = None

    def _queue(self, event: Any) -> None:
        body = pickle.dumps(event, protocol=5)
        self._unsent += _HEADER.pack(len(body)) + body

    def _write(self, deadline: float) -> None:
        if os.getpid() != self._pid:  # a DataLoader worker inherited the pen: not its pipe
            self._unsent = b""
            return
        while self._unsent:
            try:
                written = os.write(self._fd, self._unsent)
                self._unsent = self._unsent[written:]
            except BlockingIOError:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not select.select([], [self._fd], [], left_s)[1]:
                    return
            except BrokenPipeError:  # the kernel is gone, and this worker with it in a moment
                self._unsent = b""

    def _thin(self) -> None:
        self._stride *= 2
        self._points = [point for point in self._points if point[1] % self._stride == 0]


class FrameReader:
    """The kernel's side of a worker's pipe: bytes in, events out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Add what was read; return the events that are now whole, oldest first."""
        self._buffer += data
        events = []
        start = 0
        while len(self._buffer) - start >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer, start)
            end = start + _HEADER.size + length
            if len(self._buffer) < end:
                break
            events.append(pickle.loads(memoryview(self._buffer)[start + _HEADER.size : end]))
            start = end
        del self._buffer[:start]
        return events

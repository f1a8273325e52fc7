"""What the processes of a script write, on its way to the terminal: whole lines, last words apart.

Each stream of each rank has a pipe of its own (rank 0 a terminal of its own where we have one, so
that bars and colors stay), and lines of several ranks never mix. A traceback is held back until
its rank has ended: then it is known whether another rank has said the same.
"""

from __future__ import annotations

import os
import re
import select

PARTIAL_S = 0.05  # how long the start of a line waits for its end
HOLD_S = 1.5  # how long a traceback waits for the end of its process
FINAL_HOLD_S = 6.0  # the same for one that torch wrote: its process is ending
READ_BYTES = 1 << 16
MAX_HELD_BYTES = 1 << 20
# A traceback may follow a progress bar that has not ended its line; torch writes the rank first.
_LAST_WORDS = re.compile(
    rb"(\[rank\d+\]: )?(Traceback \(most recent call last\):|  \+ Exception Group Traceback)"
    rb"|^usage: ",
    re.MULTILINE,
)
_NEVER = float("inf")


class Voice:
    """One stream of one rank: what is read from ``source`` is written to ``target``.

    ``last_words`` is what is held back, if ``holds_back``: a traceback that may be the last thing.
    """

    def __init__(self, rank: int, source: int, target: int, holds_back: bool) -> None:
        self.rank = rank
        self.source = source
        self.target = target
        self._holds_back = holds_back
        self.last_words = b""
        self.ends_a_line = True  # whether what was written so far does
        self.trouble: OSError | None = None  # why the target takes nothing any more
        self._line = b""  # the start of a line whose end has not come
        self._line_due = _NEVER
        self._words_due = _NEVER

    @property
    def due(self) -> float:
        """When something that waits must be written, on the monotonic clock."""
        return min(self._line_due, self._words_due)

    def read(self, now: float) -> bool:
        """Take what is there to read and write what is whole; False when the stream has ended."""
        try:
            data = os.read(self.source, READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:  # a terminal says its end so
            data = b""
        if data:
            self._take(data, now)
        return bool(data) and self.trouble is None

    def write_due(self, now: float) -> None:
        """Write what has waited long enough: its process goes on, so it was no last word."""
        if self._words_due <= now:
            self._let_go()
        if self._line_due <= now:
            self._write(self._line)
            self._line, self._line_due = b"", _NEVER

    def finish(self) -> bytes:
        """The process has ended: write the rest of its last line, and give its last words."""
        self._take(b"", _NEVER)
        if self._line and not self.last_words:
            self._write(self._line + b"\n")
        else:
            self.last_words += self._line
        words, self.last_words = self.last_words, b""
        self._line, self._line_due, self._words_due = b"", _NEVER, _NEVER
        return words

    def _take(self, data: bytes, now: float) -> None:
        data = self._line + data
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        whole, self._line = data[:cut], data[cut:]
        if self._holds_back and not self.last_words:
            start = _start_of_last_words(whole)
            whole, self.last_words = whole[:start], whole[start:]
            is_final = self.last_words.startswith(b"[rank")
            patience_s = FINAL_HOLD_S if is_final else HOLD_S
            self._words_due = now + patience_s if self.last_words else _NEVER
        elif self.last_words:
            whole, self.last_words = b"", self.last_words + whole
        self._write(whole)
        if len(self.last_words) > MAX_HELD_BYTES:
            self._let_go()
        self._line_due = now + PARTIAL_S if self._line and not self.last_words else _NEVER

    def _let_go(self) -> None:
        self._write(self.last_words)
        self.last_words, self._words_due = b"", _NEVER

    def _write(self, data: bytes) -> None:
        if data:
            self.ends_a_line = data.endswith(b"\n")
        view = memoryview(data)
        while view and self.trouble is None:
            try:
                view = view[os.write(self.target, view) :]
            except BlockingIOError:  # somebody made it so
                select.select([], [self.target], [], 1.0)
            except OSError as error:  # no reader, disk or terminal: the rank's pipe breaks too
                self.trouble = error


def _start_of_last_words(text: bytes) -> int:
    """Find where the first traceback of ``text`` begins; its end if there is none."""
    found = _LAST_WORDS.search(text)
    return found.start() if found else len(text)


def open_ends(target: int, own_terminal: bool) -> tuple[int, int]:
    """Make the two ends of a stream: ours to read, the rank's to write.

    With ``own_terminal`` the rank gets a terminal of the size of ours instead of a pipe.
    """
    if not own_terminal:
        ours, theirs = os.pipe()
    else:
        import fcntl
        import termios
        import tty

        ours, theirs = os.openpty()
        tty.setraw(theirs)  # our own terminal does the work on line ends
        size = fcntl.ioctl(target, termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    os.set_blocking(ours, False)
    return ours, theirs

"""Where the records of runs stand: one folder each, on a shelf that several notebooks share.

A run that goes on holds a lock on its folder, which the system takes away when the process ends,
however it ends. So it is known without asking anybody which runs still run, and nobody clears
those away.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where no workers can be launched either
    fcntl = None  # type: ignore[assignment]

VARIABLE = "NOTEBOOK_ACCEL_RUNS"
MAX_RUNS = 100
MAX_BYTES = 1 << 30
_OFF = {"off", "no", "false", "0"}
_LOCK = "lock"
_SWEEP_AFTER_S = 3600.0
_LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"  # in order, and none that look alike
_ours: set[Path] = set()  # running here: probing a lock of one's own process would let go of it


def root() -> Path | None:
    """Give the folder of all records: the variable's, or one in the person's data; None if off."""
    wish = os.environ.get(VARIABLE, "").strip()
    if wish.lower() in _OFF:
        return None
    if not wish:
        usual = "~/Library/Application Support" if sys.platform == "darwin" else "~/.local/share"
        wish = f"{os.environ.get('XDG_DATA_HOME') or usual}/notebook_accel/runs"
    folder = os.path.expanduser(wish)
    return None if folder.startswith("~") else Path(os.path.abspath(folder))  # nobody's home


def trouble() -> str:
    """Say why no run can be on record here; "" if nothing stands in the way."""
    wish, shelf = os.environ.get(VARIABLE, "").strip(), root()
    if wish.lower() in _OFF:
        return f"{VARIABLE} is {wish}, so no run is recorded"
    if shelf is None:
        return f"nobody's home is known for {wish or 'the usual folder'}, so no run is recorded"
    there = next(folder for folder in (shelf, *shelf.parents) if folder.exists())
    if not there.is_dir():
        return f"{there} is no folder, so no run can be recorded in {shelf}"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"nothing may be written to {there}, so no run can be recorded"
    return ""


def new_id() -> str:
    """Name a run that starts now: the date and time, and three letters to tell it by.

    The letters are the fraction of the second, so that names are in the order of the runs.
    """
    now = time.time()
    part = int(now % 1 * len(_LETTERS) ** 3)
    letters = ""
    for _ in range(3):
        part, digit = divmod(part, len(_LETTERS))
        letters = _LETTERS[digit] + letters
    return f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{letters}"


@dataclass(frozen=True)
class Place:
    """A running run's place on the shelf, held until ``leave``."""

    path: Path
    lock: int

    def leave(self) -> None:
        """The run is over: others may clear its folder away in time; once is enough."""
        if self.path in _ours:  # else the lock's number may be somebody else's by now
            _ours.discard(self.path)
            os.close(self.lock)


def take_place(shelf: Path, name: str) -> Place:
    """Make the folder of a run that starts, locked before anybody can see it.

    Errors: OSError where the disk is full or cannot be written to.
    """
    shelf.mkdir(parents=True, exist_ok=True, mode=0o700)
    hidden = shelf / f".{name}"
    hidden.mkdir(mode=0o700)
    lock = os.open(hidden / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.write(lock, str(os.getpid()).encode())
        if fcntl is not None:
            _lock(lock)
        hidden.rename(shelf / name)
    except OSError:
        os.close(lock)
        raise
    path = shelf / name
    _ours.add(path)
    if len(names(shelf)) > MAX_RUNS:
        make_room(shelf)
    return Place(path, lock)


def is_running(path: Path) -> bool:
    """Tell whether the process that records into ``path`` still does."""
    if path in _ours:
        return True
    try:
        lock = os.open(path / _LOCK, os.O_RDWR)
    except OSError:
        return False
    try:
        return fcntl is not None and not _lock(lock)
    finally:
        os.close(lock)


def names(shelf: Path) -> list[str]:
    """Give the names of all runs on record, the newest first."""
    return sorted((name for name in _listed(shelf) if not name.startswith(".")), reverse=True)


def make_room(shelf: Path) -> None:
    """Clear away the oldest runs beyond the limits in number and bytes; never one that runs."""
    num_bytes = 0
    for kept, name in enumerate(names(shelf)):
        num_bytes += _size(shelf / name)
        too_much = kept >= MAX_RUNS or num_bytes > MAX_BYTES
        if kept and too_much and not is_running(shelf / name):
            remove(shelf / name)
    for entry in (shelf / name for name in _listed(shelf) if name.startswith(".")):
        # half made or half removed by a process that was killed
        if _age_s(entry) > _SWEEP_AFTER_S and not is_running(entry):
            shutil.rmtree(entry, ignore_errors=True)


def remove(path: Path) -> None:
    """Take a record off the shelf; of two processes that do so at once, one does."""
    gone = path.with_name(f".gone-{path.name}")
    try:
        path.rename(gone)
    except OSError:
        return
    shutil.rmtree(gone, ignore_errors=True)


def _lock(fd: int) -> bool:
    """Lock the file for this process; False when another one has it."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EACCES, errno.EAGAIN)  # else: no locks on this disk
    return True


def _listed(shelf: Path) -> list[str]:
    try:
        return os.listdir(shelf)
    except OSError:  # nothing was ever recorded
        return []


def _size(path: Path) -> int:
    try:
        return sum(entry.stat().st_size for entry in os.scandir(path))
    except OSError:
        return 0


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0

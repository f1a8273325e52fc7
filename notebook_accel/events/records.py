"""What stays of a run: its record, kept while it runs and read again by anybody, any time.

    20261129-210344-k3f/
        record.json     what was asked, who took part, how it went and ended (``story``)
        points.bin      the curves: appended as each rank reports them, made one mean at the end
        rank0.log ...   what each rank wrote, the last megabytes of it
        picture.png     the curves, where a picture was drawn
        lock            held while the run goes on (``shelf``)

Written in batches, twice a second, by the loop that watches the run; so a record that ends with
its kernel is at most half a second short. A disk that is full is told once and fails no run.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from notebook_accel.errors import ConfigError, NoSuchRun
from notebook_accel.events import points, shelf
from notebook_accel.events.discretion import hider
from notebook_accel.events.history import History
from notebook_accel.events.logs import Logs
from notebook_accel.events.model import Metrics, Output
from notebook_accel.events.sinks import Sink
from notebook_accel.events.story import About, RankStory, Story, known

LOST = "lost with its kernel"
MAX_POINT_BYTES = 16 << 20
MAX_LOG_BYTES = 2 << 20
_STORY, _POINTS, _PICTURE = "record.json", "points.bin", "picture.png"
_REPORT, _SHOW = "notebook_accel.ui.report", "notebook_accel.ui.live"


class Record:
    """What is known of one run, while it runs, afterwards, or read back from the disk.

    ``about`` is what was asked and where, ``story`` how each rank fared, ``path`` the folder it is
    kept in (None: it is kept nowhere).
    """

    def __init__(
        self,
        about: About,
        story: Story,
        history: Callable[[], History],
        texts: Callable[[], list[str]],
        path: Path | None = None,
    ) -> None:
        self.about = about
        self.story = story
        self.path = path
        self._read_history = history
        self._texts = texts
        self._history: History | None = None

    @property
    def id(self) -> str:
        """The run's name, by which ``runs.get`` finds it."""
        return self.about.id

    @property
    def ended(self) -> str:
        """How the run ended: finished, stopped, failed or lost with its kernel; or running."""
        return self.story.ended or "running"

    @property
    def config(self) -> Mapping[str, Any]:
        """What the launch was asked for."""
        return self.about.config

    @property
    def history(self) -> History:
        """The curves."""
        if self._history is None:
            self._history = self._read_history()
        return self._history

    @property
    def logs(self) -> Logs:
        """What each rank wrote: ``record.logs(0)`` or ``record.logs[0]``."""
        return Logs(self._texts())

    @property
    def step(self) -> int:
        """The optimizer step that the run has come to."""
        curves = [self.history.steps(name)[-1] for name in self.history]
        return max([rank.step for rank in self.story.ranks] + curves, default=0)

    def show(self) -> None:
        """Show the run's picture here, with its facts as text."""
        title = f"{self.about.title}, {self.ended}"
        importlib.import_module(_SHOW).show(self.history.snapshot(), title)

    def report(self, path: str | Path = "report.html") -> Path:
        """Write all of it into one HTML file that needs nothing else, and give its path."""
        now = Record(self.about, self.story, self.history.snapshot, self._texts, self.path)
        written: Path = importlib.import_module(_REPORT).write(now, Path(path))
        return written

    def export_script(self, path: str | Path = "train.py") -> Path:
        """Refuse: a record has no function; the launch's own result has.

        Errors: ConfigError, always.
        """
        raise ConfigError(
            f"the record {self.id} cannot be exported to {path}",
            f"it holds what {self.about.function} was asked for and what came of it, not its code",
            "call export_script on what the launch gave (or sys.last_value.result after an "
            "interrupt), in the kernel that launched it",
        )

    def __reduce__(self) -> Any:
        return _whole, (self.about, self.story.to_dict(), self.history, list(self.logs), self.path)

    def __repr__(self) -> str:
        facts = [self.id, self.about.title, self.ended]
        if self.story.took_s:
            facts.append(f"{self.story.took_s:.1f} s")
        if self.history.get("loss"):
            losses = self.history["loss"]
            facts.append(f"loss {losses[0]:.4g} -> {losses[-1]:.4g}")
        return f"Record({', '.join(facts)})"


def _whole(about: About, story: Any, history: History, logs: list[str], path: Any) -> Record:
    """Make a record of what was pickled, which needs no disk."""
    return Record(about, Story.from_dict(story), lambda: history, lambda: logs, path)


class Recorder(Sink):
    """A sink that keeps a run's record; ``end`` is called once the run is over, however it ended.

    It comes after the history among the sinks. ``texts`` gives what each rank has written, ``root``
    is the shelf for the record (None: it is kept in memory only), ``hide`` dots secrets out.
    """

    FLUSH_INTERVAL_S = 0.5
    STORY_INTERVAL_S = 5.0

    def __init__(
        self,
        about: About,
        history: History,
        texts: Callable[[], list[str]],
        root: Path | None,
        hide: Callable[[str], str] | None = None,
    ) -> None:
        self._began = time.monotonic()
        self._hide = hide or hider()
        self._history = history
        self._story = Story([RankStory() for _ in range(about.num_ranks)], hide=self._hide)
        self._folder = _Folder.make(root, about.id)
        self._guarded(lambda folder: folder.write_story(about, self._story))
        path = self._folder.path if self._folder is not None else None
        self.record = Record(about, self._story, lambda: history, texts, path)
        self._points: dict[tuple[int, str], tuple[array[int], array[float]]] = {}
        self._lines: dict[int, list[str]] = {}
        self._due = self._story_due = 0.0

    def handle(self, event: Any) -> None:
        """Take one event of the run."""
        if isinstance(event, Metrics):
            self._note(event)
        elif self._story.handle(event):
            self._due = self._story_due = 0.0
        if isinstance(event, Output) and self._folder is not None:
            self._lines.setdefault(event.rank, []).append(event.text)

    def tick(self) -> None:
        """Write what came since the last time, if that was a while ago."""
        now = time.monotonic()
        if self._folder is None or now < self._due:
            return
        self._due = now + self.FLUSH_INTERVAL_S
        self._write(with_story=now >= self._story_due)

    def close(self) -> None:
        """No more events will come: write the curves as they will stay."""
        self._write(with_story=False)
        self._guarded(
            lambda folder: folder.replace_points(points.means(self._history, MAX_POINT_BYTES))
        )

    def end(
        self,
        error: BaseException | None = None,
        stopped: bool = False,
        at: float | None = None,
    ) -> None:
        """The run is over, with what the person is told; its folder may be cleared away in time.

        It ended ``at`` that monotonic time; None: now.
        """
        for name in self._history:
            values = self._history[name]
            self._story.last[name] = [values[0], values[-1]]
        ended = time.monotonic() if at is None else at
        self._story.end(error, stopped, max(0.0, ended - self._began))
        self._write(with_story=True)
        self._guarded(lambda folder: folder.leave())
        self._folder = None

    def keep_picture(self, image: bytes) -> None:
        """Keep the last picture that was shown."""
        self._guarded(lambda folder: (folder.path / _PICTURE).write_bytes(image))

    def _note(self, event: Metrics) -> None:
        if self._folder is None:
            return
        stride = self._folder.stride
        for name, step, value in event.points:
            if step % stride == 0:
                steps, values = self._points.setdefault(
                    (event.rank, name), (array("q"), array("d"))
                )
                steps.append(step)
                values.append(value)

    def _write(self, with_story: bool) -> None:
        new, self._points = self._points, {}
        lines, self._lines = self._lines, {}

        def write(folder: _Folder) -> None:
            folder.add_points(new)
            for rank, texts in lines.items():
                folder.add_lines(rank, self._hide("".join(texts)))
            if with_story:
                self._story_due = time.monotonic() + self.STORY_INTERVAL_S
                folder.write_story(self.record.about, self._story)

        self._guarded(write)

    def _guarded(self, write: Callable[[_Folder], Any]) -> None:
        if self._folder is None:
            return
        try:
            write(self._folder)
        except OSError as error:
            _say_once(f"the record of this run ends here: {error.strerror or error}")
            self._folder.leave()
            self._folder = None


class _Folder:
    """A running run's files."""

    def __init__(self, place: shelf.Place) -> None:
        self._place = place
        self.path = place.path
        self.stride = 1
        self._num_bytes = 0
        self._log_bytes: dict[int, int] = {}

    @staticmethod
    def make(root: Path | None, name: str) -> _Folder | None:
        """Make the folder; None where there is no shelf or the disk takes none, which is said."""
        if root is None:
            return None
        try:
            return _Folder(shelf.take_place(root, name))
        except OSError as error:
            _say_once(f"runs are not recorded: {error.strerror or error}: {root}")
            return None

    def add_points(self, new: Mapping[tuple[int, str], tuple[array[int], array[float]]]) -> None:
        """Append to the curves; when they are too long, keep every second step of all."""
        if not new:
            return
        data = b"".join(points.frame(rank, name, *columns) for (rank, name), columns in new.items())
        with (self.path / _POINTS).open("ab") as file:
            file.write(data)
        self._num_bytes += len(data)
        if self._num_bytes > MAX_POINT_BYTES:
            self.stride *= 2
            data = points.thinned((self.path / _POINTS).read_bytes(), self.stride)
            self._replace(_POINTS, data)
            self._num_bytes = len(data)

    def replace_points(self, data: bytes) -> None:
        """Put the final curves in place of what was appended."""
        self._replace(_POINTS, data)

    def add_lines(self, rank: int, text: str) -> None:
        """Append to a rank's log; drop the older half of it when it is too long."""
        path = self.path / f"rank{rank}.log"
        data = text.encode("utf-8", "replace")[-MAX_LOG_BYTES:]
        with path.open("ab") as file:
            file.write(data)
        size = self._log_bytes.get(rank, 0) + len(data)
        if size > MAX_LOG_BYTES:
            rest = path.read_bytes()[-MAX_LOG_BYTES // 2 :]
            rest = b"... (the lines before were left out)\n" + rest[rest.find(b"\n") + 1 :]
            self._replace(path.name, rest)
            size = len(rest)
        self._log_bytes[rank] = size

    def write_story(self, about: About, story: Story) -> None:
        """Write ``record.json`` in one step."""
        told = {"format": 1, "about": asdict(about), "story": story.to_dict()}
        self._replace(_STORY, json.dumps(told, indent=1, default=str).encode())

    def leave(self) -> None:
        """The run is over."""
        self._place.leave()
        shelf.make_room(self.path.parent)

    def _replace(self, name: str, data: bytes) -> None:
        new = self.path / f"{name}.new"
        new.write_bytes(data)
        os.replace(new, self.path / name)


def read(path: Path) -> Record:
    """Read a record from its folder; of a run that goes on, as far as it has come.

    Errors: NoSuchRun where there is none, or none that this version can read.
    """
    try:
        told = json.loads((path / _STORY).read_text(encoding="utf-8"))
        about, story = About(**known(About, told["about"])), Story.from_dict(told["story"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NoSuchRun(
            f"there is no record of a run in {path}",
            f"its {_STORY} cannot be read: {error!r}",
            "runs.list() names the runs that are on record",
        ) from error
    if not story.ended and not shelf.is_running(path):
        story.ended = LOST
    return Record(
        about, story, lambda: _read_history(path, story), lambda: _read_logs(path, story), path
    )


@functools.cache
def _say_once(text: str) -> None:
    print(
        f"note: {text}\n  The run is not affected. {shelf.VARIABLE} names another folder, "
        'or "off".',
        file=sys.stderr,
    )


def _read_history(path: Path, story: Story) -> History:
    try:
        data = (path / _POINTS).read_bytes()
    except OSError:
        return History()  # nothing was reported
    if story.ended and story.ended != LOST:
        return History.of({name: (steps, values) for _, name, steps, values in points.frames(data)})
    history = History()
    for rank, name, steps, values in points.frames(data):
        told = [(name, step, value) for step, value in zip(steps, values, strict=True)]
        history.handle(Metrics(rank, told))
    history.close()
    return history


def _read_logs(path: Path, story: Story) -> list[str]:
    texts = []
    for rank in range(len(story.ranks)):
        log = path / f"rank{rank}.log"
        texts.append(log.read_text("utf-8", "replace") if log.exists() else "")
    return texts

"""A run that goes on while the cell has returned: what ``block=False`` gives.

The run is driven by a thread of its own, which lives exactly as long as the run. What it prints
goes to the cell that started it.

There is no pause. Ranks that wait hold their devices' memory and their place in line as if they
worked; who needs the device needs it free, which is ``stop()`` and later ``load_state``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from notebook_accel.config.words import kind_of
from notebook_accel.errors import ConfigError, Explained, LaunchError, RunInterrupted, RunStopped
from notebook_accel.events.history import History
from notebook_accel.events.lines import ipython
from notebook_accel.events.logs import Logs, no_such_rank
from notebook_accel.events.records import Record
from notebook_accel.launch.result import RunResult, export

if TYPE_CHECKING:
    from notebook_accel.launch.run import Attempt

MAX_LINE = 100
_going: set[int] = set()  # numbers of the runs that go on in the background


def next_number() -> int:
    """Give the number of a run that starts now, to be told from those that go on."""
    return max(_going, default=0) + 1


class Run:
    """A running launch: look at it, ``wait()`` for its result, ``stop()`` it, or ``kill()`` it.

    All of it can be called from any cell while the run goes on and after it has ended. It can be
    awaited: ``result = await run``, which raises RunStopped where ``wait()`` raises RunInterrupted,
    for event loops do not survive a KeyboardInterrupt in a task. After the end it has what the
    result has: ``run[rank]``, ``run.salvaged``; ``run.result`` is there also of a run that was
    stopped or failed.
    """

    def __init__(self, go: Callable[[Run], RunResult], number: int = 1) -> None:
        self._go = go
        self._number = number
        self._attempt: Attempt | None = None
        self._asked: list[Callable[[Attempt], None]] = []
        self._result: RunResult | None = None
        self._error: BaseException | None = None
        self._attached = threading.Event()
        self._done = threading.Event()
        self._adopt_cell = _cell_adopter()
        _going.add(number)
        self._thread = threading.Thread(target=self._drive, name="notebook_accel run", daemon=True)
        self._thread.start()

    def attach(self, attempt: Attempt) -> None:
        """Take the attempt that is about to start; called by the launcher."""
        self._attempt = attempt
        self._attached.set()
        for what in self._asked:
            what(attempt)

    @property
    def asked(self) -> bool:
        """Whether anybody asked it to end; for what goes on before an attempt."""
        return bool(self._asked)

    # ── ending it ─────────────────────────────────────────────────────────────────────────────

    def stop(self) -> None:
        """Ask the ranks to stop after a step they agree on; ``wait()`` then has the rest."""
        self._ask(lambda attempt: attempt.stop())

    def kill(self) -> None:
        """End the ranks now."""
        self._ask(lambda attempt: attempt.kill())

    def wait(self, timeout_s: float | None = None) -> RunResult:
        """Wait for the end and give the result.

        Errors: what a blocking launch would have raised; LaunchError if the run is still going
        after ``timeout_s``; ConfigError if that is no number.
        """
        if timeout_s is not None and type(timeout_s) not in (int, float):
            raise ConfigError(
                f"wait() was given {kind_of(timeout_s)} to wait for",
                "its limit is a number of seconds",
                "write run.wait(60), or run.wait() to wait for the end",
            )
        if not self._done.wait(timeout_s):
            raise LaunchError(
                f"the run is still going after {timeout_s} s",
                "wait() was given a limit; the run was not",
                "call wait() again, stop() or kill()",
            )
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def __await__(self) -> Generator[Any, None, RunResult]:
        import asyncio

        return asyncio.get_running_loop().run_in_executor(None, self._end).__await__()

    def _end(self) -> RunResult:
        """Wait for whoever awaits this: what ends a cell would end the event loop."""
        try:
            return self.wait()
        except RunInterrupted as stop:
            raise RunStopped(str(stop), stop.result) from None

    # ── after the end ─────────────────────────────────────────────────────────────────────────

    @property
    def result(self) -> RunResult:
        """The result, of a run that was stopped or failed what there was by then.

        Errors: LaunchError while the run goes on; what ``wait()`` raises, if nothing is left.
        """
        if not self.done:
            raise LaunchError(
                "the run is still going: there is no result yet",
                "what the function returns, and the models of a stopped run, come at the end",
                "call run.wait() first; run.history and run.logs are there already",
            )
        left = getattr(self._error, "result", None)
        return left if isinstance(left, RunResult) else self.wait()

    @property
    def values(self) -> list[Any]:
        """What the function returned on each rank, in rank order; as ``result``."""
        return self.result.values

    @property
    def salvaged(self) -> list[Any]:
        """Rank 0's models as they were when the run was stopped; as ``result``."""
        return self.result.salvaged

    def __getitem__(self, rank: int) -> Any:
        if isinstance(rank, str):
            raise no_such_rank(rank, 0)
        value = self.result[rank]
        if value is None and isinstance(self._error, Exception):
            raise self._error
        return value

    # ── looking at it ─────────────────────────────────────────────────────────────────────────

    @property
    def done(self) -> bool:
        """True when the run has ended and left nothing behind."""
        return self._done.is_set()

    @property
    def history(self) -> History:
        """The curves so far: a mapping, with ``to_pandas()`` and ``to_csv(path)``."""
        return self._attempt.history if self._attempt is not None else History()

    @property
    def logs(self) -> Logs:
        """What each rank has written so far: ``run.logs(0)`` or ``run.logs[0]``."""
        return Logs(self._attempt.logs.texts() if self._attempt is not None else [])

    @property
    def record(self) -> Record:
        """All that is known of the run, also on the disk; waits until the run has begun.

        Errors: what ``wait()`` raises, if the run could not begin.
        """
        while not self._attached.wait(0.05):
            if self.done:
                self.wait()
        assert self._attempt is not None
        return self._attempt.recorder.record

    @property
    def id(self) -> str:
        """The run's name on record: ``runs.get(id)`` finds it in any notebook."""
        return self.record.id

    @property
    def path(self) -> Path | None:
        """The folder of its record; None if none is kept."""
        return self.record.path

    def show(self) -> None:
        """Show the curves so far, here."""
        self.record.show()

    def report(self, path: str | Path = "report.html") -> Path:
        """Write the run as far as it is into one HTML file, and give its path."""
        return self.record.report(path)

    def export_script(self, path: str | Path = "train.py") -> Path:
        """Write the function with all it uses as a script, and give its path.

        Errors: ConfigError naming each global that has no source.
        """
        record = self.record
        assert self._attempt is not None
        return export(self._attempt.order.job, record, path)

    def __repr__(self) -> str:
        if self.done and self._error is not None:
            return f"Run(done: {_in_short(self._error)})"
        if self.done:
            return f"Run(done: {self._result!r})"
        step = self._attempt.recorder.record.step if self._attempt is not None else 0
        return f"Run(running, step {step})" if step else "Run(running)"

    def _ask(self, what: Callable[[Attempt], None]) -> None:
        self._asked.append(what)
        if self._attempt is not None:
            what(self._attempt)

    def _drive(self) -> None:
        self._adopt_cell()
        try:
            self._result = self._go(self)
        except BaseException as error:  # it is the user's: wait() raises it
            self._error = error
        finally:
            _going.discard(self._number)
            self._done.set()


def _in_short(error: BaseException) -> str:
    """Give an error in one line: what happened, without what to do about it."""
    if isinstance(error, RunInterrupted):
        text = str(error).partition(";")[0]
    elif isinstance(error, Explained):
        text = f"{type(error).__name__}: {error.what}"
    else:
        text = repr(error)
    line = text.partition("\n")[0]
    return line if len(line) <= MAX_LINE else line[: MAX_LINE - 1] + "…"


def _cell_adopter() -> Callable[[], None]:
    """Give a function that makes its thread print under the cell that is running now."""
    shell = ipython()
    owner: Any = shell if hasattr(shell, "get_parent") else getattr(shell, "kernel", None)
    if not hasattr(owner, "get_parent") or not hasattr(shell, "set_parent"):
        return lambda: None
    parent = owner.get_parent()
    return lambda: shell.set_parent(parent)

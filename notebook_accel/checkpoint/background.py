"""Writing behind the training loop's back, one write at a time."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

from notebook_accel.errors import CheckpointError
from notebook_accel.events import context


class Background:
    """Runs one job in a thread; whoever waits for it gets its error.

    The thread is no daemon: an ending process waits for it, and shows its error.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, job: Callable[[], None]) -> None:
        """Begin ``job``; the one before must have been waited for."""
        assert self._thread is None, "wait() comes before start()"
        self._wait_at_exit()
        self._thread = threading.Thread(target=self._run, args=(job,), name="checkpoint writer")
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is being written.

        Errors: CheckpointError with the reason, once, if the last write failed.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise CheckpointError(
                f"the last checkpoint was not written: {type(error).__name__}: {error}",
                "it was written in the background (async_save=True), while training went on",
                "free space or fix the path and save again; earlier checkpoints are untouched",
            ) from error

    def _wait_at_exit(self) -> None:
        worker = context.current()
        if worker is not None and self.wait not in worker.at_exit:
            worker.at_exit.append(self.wait)  # before this rank leaves the others
        atexit.unregister(self.wait)
        atexit.register(self.wait)

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            self._error = error

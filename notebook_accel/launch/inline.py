"""One rank in this very process, for debuggers: no fork, no pipes, the same events and result."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from notebook_accel.errors import ConfigError
from notebook_accel.events import context, shelf
from notebook_accel.events.emitter import Emitter
from notebook_accel.events.history import History
from notebook_accel.events.logs import Logs
from notebook_accel.events.model import Failed, Returned, Started
from notebook_accel.events.records import Recorder
from notebook_accel.events.sinks import Sink
from notebook_accel.launch.about import about, hider
from notebook_accel.launch.plan import LaunchPlan
from notebook_accel.launch.result import RunResult
from notebook_accel.launch.start import Job


class LocalEmitter(Emitter):
    """A pen whose events go to sinks at once."""

    def __init__(self, sinks: list[Sink]) -> None:
        self._sinks = sinks
        read, write = os.pipe()
        super().__init__(0, write)
        os.close(read)
        self._write_fd = write

    def _queue(self, event: Any) -> None:
        for sink in self._sinks:
            sink.handle(event)
            sink.tick()

    def close(self) -> None:
        """Let go of what the plain pen needs."""
        os.close(self._write_fd)


class _NeverStop:
    stop = False  # an interrupt is a KeyboardInterrupt here: there is no other process to ask


def run(
    job: Job,
    placed: LaunchPlan,
    settings: dict[str, Any],
    env: dict[str, str],
    make_view: Callable[[Any, str, int], Sink],
) -> RunResult:
    """Call the function here, as rank 0 of 1. Exceptions are simply the function's own.

    Errors: ConfigError for more than one rank.
    """
    if placed.placements[0].size != 1:
        raise ConfigError(
            f"start_method='inline' with {placed.placements[0].size} ranks",
            "inline calls the function in this process, which is one rank",
            "pass num_processes=1, or another start_method",
        )
    history = History()
    recorder = Recorder(
        about(job, placed, "inline", settings, env), history, list, shelf.root(), hider(job, env)
    )
    view = make_view(history, f"{placed.device_words}, inline", 1)
    emitter = LocalEmitter([history, recorder, view])
    worker = context.WorkerContext(placed.placements[0], emitter, _NeverStop(), settings)
    before = {name: os.environ.get(name) for name in {**placed.env, **env}}
    os.environ.update({**placed.env, **env})
    began = time.monotonic()
    token = context.enter(worker)
    emitter.send(Started(0, os.getpid(), worker.placement.device, placed.num_threads))
    failed: BaseException | None = None
    try:
        value = job.function(*job.args, **job.kwargs)
        emitter.send(Returned(0, 0))
    except BaseException as error:
        failed = error
        emitter.send(Failed(0, type(error).__name__, str(error), [], ""))
        raise
    finally:
        context.leave(token)
        emitter.flush()
        for leave in reversed(worker.at_exit):
            leave()
        for sink in (history, recorder, view):
            sink.close()
        recorder.end(failed)
        emitter.close()
        for name, old in before.items():
            os.environ.pop(name, None) if old is None else os.environ.update({name: old})
    took_s = time.monotonic() - began
    return RunResult(
        [value], history, Logs([""]), took_s, placed.device_words, "inline", recorder.record, job
    )

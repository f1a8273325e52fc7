"""Progress of what takes long and is no training step: saving, loading, preparing, importing.

In a launched worker it goes to the kernel, whose view shows it once it has taken a second. In a
script, rank 0 shows a bar after a second; in a cell, one line says what is going on after three,
for it stays. Nothing is said from other threads than the main one.
"""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from notebook_accel.config.placement import Placement
from notebook_accel.errors import ConfigError
from notebook_accel.events import context
from notebook_accel.events.emitter import Emitter
from notebook_accel.events.lines import ipython
from notebook_accel.events.model import Task

QUIET_S = 1.0
LINE_QUIET_S = 3.0  # a line in a cell stays there
TELL_INTERVAL_S = 0.25


class Teller:
    """Hears how far a task is; says nothing to anybody."""

    def told(self, done: float) -> None:
        """``done`` of the total is done."""

    def over(self) -> None:
        """The task has ended, however it did."""


@contextmanager
def task(
    name: str, total: float | None = None, unit: str = ""
) -> Iterator[Callable[[float], None]]:
    """Tell of something long that the block does; gives what is called with how much is done.

    Without ``total`` nobody knows how much there is, and only the time tells.

    Ranks: any; what the first rank of a machine says is told.
    """
    teller = _teller(name, total, unit)
    try:
        yield teller.told
    finally:
        teller.over()


@contextmanager
def counting(name: str, total: float, unit: str) -> Iterator[Callable[[float], None]]:
    """As ``task``, giving what is called with how much more is done."""
    done = 0.0
    with task(name, total, unit) as told:

        def more(amount: float) -> None:
            nonlocal done
            done += amount
            told(done)

        yield more


def _teller(name: str, total: float | None, unit: str) -> Teller:
    if threading.current_thread() is not threading.main_thread():
        return Teller()
    worker = context.current()
    if worker is not None:
        first = worker.placement.local_rank == 0  # the others do the same at the same time
        return _ToKernel(worker.emitter, name, total, unit) if first else Teller()
    if ipython() is not None:
        return _Line(name)
    try:
        rank = Placement.from_env().rank
    except ConfigError:  # whoever needs the rank will say so
        return Teller()
    if rank != 0:
        return Teller()
    return _Line(name) if total is None else _Bar(name, total, unit)


class _ToKernel(Teller):
    """Sends Task events: one at the start, one at the end, some between."""

    def __init__(self, emitter: Emitter, name: str, total: float | None, unit: str) -> None:
        self._emitter = emitter
        self._name, self._total, self._unit = name, total, unit
        self._began = time.monotonic()
        self._due = self._began + TELL_INTERVAL_S
        self._send(0, total)

    def told(self, done: float) -> None:
        now = time.monotonic()
        if now >= self._due and done != self._total:
            self._due = now + TELL_INTERVAL_S
            self._send(done, self._total)

    def over(self) -> None:
        total = self._total
        if total is None:
            total = round(time.monotonic() - self._began, 1)
        self._send(total, total)

    def _send(self, done: float, total: float | None) -> None:
        rank = self._emitter.rank
        self._emitter.send(Task(rank, self._name, done, total, self._unit))


class _Bar(Teller):
    """A bar of tqdm on stderr, made when the task has taken a second; a terminal keeps none."""

    def __init__(self, name: str, total: float, unit: str) -> None:
        self._began = time.monotonic()
        self._name, self._total, self._unit = name, total, unit
        self._bar: Any = None
        self._done = 0.0

    def told(self, done: float) -> None:
        if self._bar is None:
            if time.monotonic() - self._began < QUIET_S or done >= self._total:
                return
            in_bytes, on_screen = self._unit == "bytes", sys.stderr.isatty()
            self._bar = _tqdm()(
                desc=self._name,
                total=self._total,
                unit="B" if in_bytes else f" {self._unit}".rstrip() or "it",
                unit_scale=in_bytes,
                leave=not on_screen,  # a log keeps what it was told
                mininterval=0.25 if on_screen else 5.0,
            )
        self._bar.update(done - self._done)
        self._done = done

    def over(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _tqdm() -> Any:
    """Give tqdm's bar, without the thread that it would start and never end: workers are forked."""
    bar = importlib.import_module("tqdm").tqdm
    return type("Bar", (bar,), {"monitor_interval": 0})


class _Line(Teller):
    """A line when the task has taken three seconds, and another one when it is over."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._began = time.monotonic()
        self._said = False
        self._timer = threading.Timer(LINE_QUIET_S, self._say)
        self._timer.daemon = True
        self._timer.start()

    def over(self) -> None:
        self._timer.cancel()
        self._timer.join()
        if self._said:
            self._write(f"{self._name} took {time.monotonic() - self._began:.1f} s\n")

    def _say(self) -> None:
        self._said = True
        self._write(f"{self._name} ...\n")

    def _write(self, text: str) -> None:
        stream = sys.stderr if ipython() is None else sys.stdout  # a page paints stderr red
        stream.write(text)
        stream.flush()

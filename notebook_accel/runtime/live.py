"""What the notebook sees while it trains: losses and progress, noted without slowing the loop.

The loss of a step is the mean over its window of what was given to ``backward``, before our own
division and scaling: one series for each place in the person's code that calls it.
"""

from __future__ import annotations

import importlib
import inspect
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from notebook_accel.data.loader import Pass, PreparedLoader
from notebook_accel.events import context, lines, rails
from notebook_accel.events.emitter import Emitter
from notebook_accel.events.model import Metrics, Progress
from notebook_accel.ranks.world import World
from notebook_accel.runtime.learning_rates import LearningRates
from notebook_accel.runtime.prepare import Wardrobe
from notebook_accel.strategies.base import Layout

RING_SIZE = 64
_PENS = ("notebook_accel.ui.in_script", "notebook_accel.ui.in_cell")  # of loops without a launch


def live_events(layout: Layout, world: World, wardrobe: Wardrobe) -> LiveEvents | None:
    """Make what tells of this process's training; None where nobody looks.

    A launched worker has a pen. A loop that runs in a cell or a script itself is told of there: the
    drawing side is found by its name, for the runtime does not import it. It may hold what this
    gives for longer than the training lives, so that keeps no model.
    """
    worker, device, kept = context.current(), world.device, weakref.ref(wardrobe)
    pen: Any = None if worker is None else worker.emitter
    if worker is None and device.type != "xla":  # whose numbers nobody reads aside
        here = importlib.import_module(_PENS[lines.ipython() is not None])
        pen = here.pen(str(device), world.rank, world.size)
    if pen is None:
        return None

    def optimizers() -> Sequence[Optimizer]:
        dressed = kept()
        return [] if dressed is None else dressed.optimizers

    def end() -> None:
        dressed = kept()
        live.end_run([] if dressed is None else dressed.loaders)

    first = layout.readers.index(layout.data_rank) if layout.readers else world.rank
    live = LiveEvents(pen, layout.loss_owner, device, optimizers, first == world.rank)
    if worker is None:
        pen.at_end.append(end)
    return live


class LiveEvents:
    """Notes losses and progress of one rank and hands them to the pen.

    ``owns_loss`` tells whether this rank's loss is a real one; ``optimizers`` gives the prepared
    ones, for their learning rates. ``counts`` tells whether samples count here: of several ranks
    that read the same data, those of the first.
    """

    def __init__(
        self,
        emitter: Emitter,
        owns_loss: bool,
        device: torch.device,
        optimizers: Callable[[], Sequence[Optimizer]],
        counts: bool = True,
    ) -> None:
        self._emitter = emitter
        self._rank = emitter.rank  # on this machine: the kernel here hears only its own ranks
        self._owns_loss = owns_loss
        self._counts = counts
        self._series: dict[tuple[int, int], _Series] = {}
        self._left: list[str] = []  # names of curves from places in cells that are over
        self._noted: list[_Series] = []
        self._newest: _Series | None = None
        self._step = 0
        self._pass: Pass | None = None
        self._waited_s = 0.0
        self._from_step = 0  # where this run's own work began: step, waits, and samples by loader
        self._from_waited_s = 0.0
        self._from_samples: dict[int, int] = {}
        self._no_numbers: set[str] = set()  # names that were said to be none
        self._rates = LearningRates(optimizers if emitter.rank == 0 else list)
        self._where = self._news  # bound once: it is handed over at every step
        self._ring = None if device.type == "cpu" else Ring(device)

    def note(self, loss: Tensor, caller: FrameType) -> None:
        """Note a loss that ``caller`` gives to ``backward``."""
        if not self._owns_loss or loss.numel() != 1:
            return
        series = self._newest
        if series is None or series.at != caller.f_lasti or series.code is not caller.f_code:
            series = self._newest = self._series_of(caller)
        value = loss.item() if self._ring is None else loss.detach().float().reshape(())
        if series.count == 0:
            self._noted.append(series)
            series.total = value
            series.count = 1
        else:
            series.total = series.total + value
            series.count += 1

    def ignore_losses(self) -> None:
        """Leave losses to whoever logs them by name."""
        self._owns_loss = False

    def stepped(self, step: int, one: Pass | None, weight: Tensor | None = None) -> None:
        """Send what the window that ends with optimizer step ``step`` brought.

        ``weight`` makes the mean of losses that were weighed by what they count.
        """
        means = []
        for series in self._noted:
            means.append((series.name, series.total / series.count))
            series.count = 0
        self._noted.clear()
        if weight is not None:
            factor = weight.item() if self._ring is None else weight
            means = [(name, mean * factor) for name, mean in means]
        if self._ring is not None:
            for name, mean in means:
                self._send(self._ring.put(name, step, mean))
            self._send(self._ring.take(wait=False))
            means = []
        self._step, self._pass = step, one
        self._rates.stepped(step)
        self._emitter.stepped(step, means, self._where)

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Send named numbers at ``step``; whatever is no number is for trackers, not for curves."""
        for name, value in values.items():
            if isinstance(value, Tensor) and value.numel() == 1:
                value = value.item()
            try:
                number = float(value)
            except (TypeError, ValueError, OverflowError):  # 10**400 is too large for one
                self._say_that_it_is_no_number(name, value)
                continue
            self._rates.leave_to(name)
            self._emitter.metric(name, step, number)

    def _say_that_it_is_no_number(self, name: str, value: Any) -> None:
        if name not in self._no_numbers:
            self._no_numbers.add(name)
            kind = type(value).__name__
            rails.note(
                f"accelerator.log: {name!r} is no number that a curve can hold ({kind}): "
                "trackers get it, curves do not"
            )

    def finish(self) -> None:
        """Wait for the numbers still on their way from the device, and send them."""
        if self._ring is not None:
            self._send(self._ring.take(wait=True))

    def begin_at(self, step: int, loaders: Iterable[PreparedLoader]) -> None:
        """Count from here: what came before ``step`` was another run's work.

        ``loaders`` are the prepared ones, as they stand now.
        """
        self._emitter.flush()
        self._from_step, self._from_waited_s = step, self._waited_s
        # By what they read: a view that skips batches counts with its loader.
        self._from_samples = {id(one.source): one.samples for one in loaders}

    def end_run(self, loaders: Iterable[PreparedLoader]) -> None:
        """Let what the same loop does later, in another cell, count for itself."""
        self.finish()
        self.begin_at(self._step, loaders)
        self._newest = None
        for key, one in list(self._series.items()):
            if _runs_once(one.code):
                self._left.append(self._series.pop(key).name)

    def _series_of(self, caller: FrameType) -> _Series:
        """The curve of this place in the person's code."""
        # The place of the call: cheaper than code object and line, whose hash and lookup are slow.
        key = (id(caller.f_code), caller.f_lasti)
        series = self._series.get(key)
        if series is None:
            name = self._name_of(caller.f_code)
            series = self._series[key] = _Series(name, caller.f_code, caller.f_lasti)
        return series

    def _name_of(self, code: CodeType) -> str:
        """Name the curve of a new place: a loop in a cell goes on with that of a former cell."""
        if self._left and _runs_once(code):
            return self._left.pop(0)
        number = len(self._series) + len(self._left) + 1
        return "loss" if number == 1 else f"loss/{number}"

    def _news(self) -> list[Any]:
        points = self._rates.news()
        return [*([Metrics(self._rank, points)] if points else []), self._progress()]

    def _progress(self) -> Progress:
        where: tuple[int, int, int | None] = (0, 0, None)
        samples, one = 0, self._pass
        if one is not None:
            loader, where = one.loader, (one.epoch, one.taken, one.num_batches)
            self._waited_s = loader.passes.waited_s
            if self._counts:
                samples = loader.samples - self._from_samples.get(id(loader.source), 0)
        waited_s = self._waited_s - self._from_waited_s
        return Progress(self._rank, self._step, *where, samples, waited_s, self._from_step)

    def _send(self, points: list[tuple[str, int, float]]) -> None:
        for name, step, value in points:
            self._emitter.metric(name, step, value)


def _runs_once(code: CodeType) -> bool:
    """Whether ``code`` is that of a cell or a script, whatever IPython calls it: no function's."""
    return not code.co_flags & inspect.CO_NEWLOCALS


class _Series:
    """One curve: its name, its place in the code, and the sum over the open window."""

    __slots__ = ("at", "code", "count", "name", "total")

    def __init__(self, name: str, code: CodeType, at: int) -> None:
        self.name = name
        self.code = code
        self.at = at
        self.total: Any = 0.0
        self.count = 0


class Ring:
    """Numbers on their way from a device: copied aside in order, read when they have arrived.

    Nothing waits for the device, unless all ``RING_SIZE`` places are on their way. ``event`` makes
    a mark in the device's work that tells when it is reached, by default torch's own.
    """

    def __init__(self, device: torch.device, event: Callable[[], Any] | None = None) -> None:
        self._event = event or torch.get_device_module(device).Event
        self._places = torch.zeros(RING_SIZE, pin_memory=device.type == "cuda")
        self._free = deque(range(RING_SIZE))
        self._sent: deque[tuple[Any, int, str, int]] = deque()

    def put(self, name: str, step: int, value: Tensor) -> list[tuple[str, int, float]]:
        """Send a number on its way; gives what had to be waited for, normally nothing."""
        arrived = [] if self._free else self.take(wait=True)
        place = self._free.popleft()
        self._places[place].copy_(value, non_blocking=True)
        event = self._event()
        event.record()
        self._sent.append((event, place, name, step))
        return arrived

    def take(self, wait: bool) -> list[tuple[str, int, float]]:
        """Give the numbers that have arrived, oldest first; with ``wait`` all of them."""
        if wait and self._sent:
            self._sent[-1][0].synchronize()
        arrived = []
        while self._sent and self._sent[0][0].query():
            _, place, name, step = self._sent.popleft()
            arrived.append((name, step, self._places[place].item()))
            self._free.append(place)
        return arrived

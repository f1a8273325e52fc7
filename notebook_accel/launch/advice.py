"""``advise``: which strategies fit in memory, what each would hold, and why. Nothing is opened.

Measuring needs torch and lies on the worker side: it is called by its name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

from notebook_accel.config.budget import Budget, Training
from notebook_accel.config.installed import is_installed
from notebook_accel.config.offers import Costed, costed
from notebook_accel.config.schema import check_choice
from notebook_accel.config.sizes import Sizes
from notebook_accel.config.wishes import SingleDevice, Strategy
from notebook_accel.errors import ConfigError
from notebook_accel.launch.capacity import Capacity, capacity
from notebook_accel.launch.machine import Machine, read_machine
from notebook_accel.launch.precisions import preselected

_MEASURE = "notebook_accel.strategies.measure"
_NAMED = "notebook_accel.strategies.named"
RESERVED_BYTES = 10**9  # what a GPU's driver and libraries take, and gaps between tensors
CPU_RESERVED_BYTES = 3 * 10**8  # Python and torch, in each rank
TIGHT = 0.9  # of the memory: what fills more may fail where estimates are rough
_COLUMNS = ("weights", "gradients", "optimizer", "activations", "other", "total")


@dataclass(frozen=True)
class Estimate:
    """One strategy: what a rank would hold, whether that ``fits``, and what speaks for it."""

    strategy: Strategy
    label: str
    memory: Budget
    fits: bool
    why: str


@dataclass(frozen=True)
class Advice:
    """Strategies for a model on some devices, the best first; shows as a table.

    ``best`` is the strategy to pass, None where nothing fits; ``code`` is the line to write.
    """

    estimates: tuple[Estimate, ...]
    sizes: Sizes
    training: Training
    capacity: Capacity

    @property
    def best(self) -> Strategy | None:
        """The fastest strategy that fits."""
        return next((one.strategy for one in self.estimates if one.fits), None)

    @property
    def code(self) -> str:
        """The line that launches with the best strategy; empty where nothing fits."""
        if self.best is None:
            return ""
        words = [f"num_processes={self.training.num_ranks}"]
        words += [f'mixed_precision="{self.training.precision}"']
        words += ['device="cpu"'] * self.capacity.shares_host
        words += [f"strategy={self.best!r}"] * (not isinstance(self.best, SingleDevice))
        return f"notebook_launcher(main, {', '.join(words)})"

    @property
    def title(self) -> str:
        """What was asked, in one line."""
        kept, one = self.sizes.kept, self.training
        batch = f", batch {kept.batch} on each rank" if kept is not None and kept.batch else ""
        room = f"{gigabytes(self.capacity.bytes_each)} each"
        return (
            f"{self.sizes.name}, {count(self.sizes.num_parameters)} parameters, on "
            f"{self.capacity.words} ({room}): {one.optimizer}, mixed_precision={one.precision}"
            f"{batch}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not in the numbers."""
        reserved = _reserved(self.capacity) / 1e9
        said = [f"of each device {reserved:.1g} GB are left to libraries and gaps"]
        if self.sizes.kept is None:
            said.insert(0, f"activations are not counted: {self.sizes.why}")
        if self.best is None:
            said.append("nothing fits: a smaller batch, more devices, or a leaner optimizer")
        return tuple(said)

    def _rows(self, scale: float) -> list[list[str]]:
        best = self.best
        return [
            _cells(one, scale, self.sizes, is_best=one.strategy is best) for one in self.estimates
        ]

    def __repr__(self) -> str:
        unit, scale = _unit(self.estimates)
        head = ["", f"{unit} on a rank", *_COLUMNS, "fits"]
        rows = [head, *self._rows(scale)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            cells = [
                cell.ljust(width) if n in (0, 1, len(head) - 1) else cell.rjust(width)
                for n, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        whys = [f"  {one.label}: {one.why}" for one in self.estimates]
        last = [f"note: {note}" for note in self.notes]
        return "\n".join(
            [self.title, "", *lines, "", *whys, "", *last, *([self.code] if self.code else [])]
        )

    def _repr_html_(self) -> str:
        unit, scale = _unit(self.estimates)
        names = ["", f"{unit} on a rank", *_COLUMNS, "fits"]
        head = "".join(
            f'<th scope="col" style="{_LEFT if n < 2 else _RIGHT}">{name}</th>'
            for n, name in enumerate(names)
        )
        body = "".join(
            f"<tr>{_html_cells(cells, one.why)}</tr>"
            for one, cells in zip(self.estimates, self._rows(scale), strict=True)
        )
        notes = "".join(f"<div>note: {escape(one)}</div>" for one in self.notes)
        code = f'<pre style="{_LINE}"><code>{escape(self.code)}</code></pre>' if self.code else ""
        return (
            f"<div><strong>{escape(self.title)}</strong></div><div style='overflow-x:auto'><table>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{notes}{code}"
        )


_LEFT = "text-align:left"
_RIGHT = "text-align:right;font-variant-numeric:tabular-nums"
_LINE = "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"  # between words
_WHY = "font-size:.9em;opacity:.8;max-width:26em"


def advise(
    model: Any,
    batch: Any = None,
    devices: Any = None,
    *,
    mixed_precision: str | None = None,
    optimizer: str = "adamw",
    loss_fn: Callable[[Any, Any], Any] | None = None,
    machine: Machine | None = None,
) -> Advice:
    """Tell which strategies fit in memory, with what each rank would hold, the best first.

    model: a module (also on the meta device, or too large for this machine), a function that makes
        one, or a number of parameters. It is not changed.
    batch: what one rank's loader gives, to measure activations: what the model is called with, a
        pair ``(inputs, targets)``, or a loader. Without it they are not counted.
    devices: None (what is here), a number, "80GB", "T4 x2", ["24GB", "24GB"], {0: "14GB"}.
    mixed_precision: "no", "fp16", "bf16" or "fp8"; None: what suits the devices.
    optimizer: "adamw", "adam", "sgd", "momentum", "lion", "adafactor", "adam8bit".
    loss_fn: called as ``loss_fn(model(inputs), targets)``, to count what the loss keeps.

    Units: bytes; tables are in GB of 10^9 bytes.
    Ranks: called anywhere; no device is opened.
    Errors: ConfigError for what names no model, device, precision or optimizer.
    """
    here = _lazily(machine)
    found = capacity(devices, here)
    precision = _precision(mixed_precision, found, here)
    training = Training(len(found.devices), precision, optimizer)
    sizes = sizes_of(model, batch, precision, loss_fn)
    ranked = costed(
        sizes, training, lambda memory: max(_excess(memory, found)) <= 0, is_installed,
        found.shares_host,
    )  # fmt: skip
    return Advice(tuple(_estimate(one, found) for one in ranked), sizes, training, found)


def count(number: int) -> str:
    """Write a number of parameters: "124 M", "6.74 B"."""
    for size, unit in ((10**9, " B"), (10**6, " M"), (10**3, " k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


def _lazily(machine: Machine | None) -> Callable[[], Machine]:
    return read_machine if machine is None else lambda: machine


def _precision(asked: str | None, found: Capacity, machine: Callable[[], Machine]) -> str:
    if asked is not None:
        check_choice("mixed_precision", asked, ("no", "fp16", "bf16", "fp8"))
        return asked
    if found.shares_host:
        return preselected((), machine())[0]
    if any(one.capability is None for one in found.devices):  # known by its memory alone
        return "bf16"
    return preselected(found.devices, Machine())[0]


def sizes_of(model: Any, batch: Any = None, precision: str = "no", loss_fn: Any = None) -> Sizes:
    """Measure what a person has of a model: a module, what makes one, or a number of parameters.

    Errors: ConfigError for anything else.
    """
    if isinstance(model, int) and not isinstance(model, bool) and model > 0:
        return Sizes.of_number(model)
    is_module = callable(getattr(model, "named_parameters", None))
    if isinstance(model, type) or not (is_module or callable(model)):
        raise ConfigError(
            f"model={model!r:.60} has no size",
            "memory is told from a module, a function that makes one, or a number of parameters",
            "pass the module itself, lambda: Net(...), or a number such as 7_000_000_000",
        )
    if not is_module:
        model, _, given = importlib.import_module(_NAMED).made(model, "model()")
        batch = given if batch is None else batch
    found = importlib.import_module(_MEASURE).measure(model, _first(batch), precision, loss_fn)
    assert isinstance(found, Sizes)
    return found


def _first(batch: Any) -> Any:
    """Take a batch of a loader: its first sample, as often as it has rows, by its own collating."""
    dataset, collate = getattr(batch, "dataset", None), getattr(batch, "collate_fn", None)
    size = getattr(batch, "batch_size", None)
    if dataset is None or collate is None:
        return batch
    if not hasattr(dataset, "__getitem__") or not size:
        raise ConfigError(
            f"{type(batch).__name__} was given as the batch, and has no sample to look at",
            "its dataset has no numbered samples, or it has no batch size",
            "pass batch=next(iter(loader))",
        )
    return collate([dataset[0]] * size)


def _excess(memory: Budget, found: Capacity) -> tuple[int, int]:
    """Count what is too much for a device and for the CPU's memory: negative where it fits."""
    over = memory.total - _room(found) if found.bytes_each else 0
    host_over = memory.host * len(found.devices) - found.host_bytes if found.host_bytes else 0
    return over, host_over


def _room(found: Capacity) -> int:
    return found.bytes_each - _reserved(found)


def _estimate(one: Costed, found: Capacity) -> Estimate:
    memory, missing, why = one.memory, one.missing, one.offer.why
    over, host_over = _excess(memory, found)
    if memory.host:
        why += f"; {gigabytes(memory.host)} of the CPU's memory for each rank"
    if missing:
        why += f'; needs {missing}: pip install "notebook-accel[{missing}]"'
    if over > 0:
        why = f"{gigabytes(over)} too much; {why}"
    elif memory.total > TIGHT * _room(found):
        why = f"tight; {why}"
    if host_over > 0:
        why = f"{gigabytes(host_over)} too much for the CPU's memory; {why}"
    return Estimate(one.offer.wish, one.offer.label, memory, bool(one.fits), why)


def gigabytes(size: int) -> str:
    """Write bytes in GB: "12.4 GB", "< 0.01 GB"."""
    if size < 10**7:
        return "< 0.01 GB"
    return f"{size / 1e9:.3g} GB" if size < 10**12 else f"{size / 1e9:,.0f} GB"


def _reserved(found: Capacity) -> int:
    return CPU_RESERVED_BYTES if found.shares_host else RESERVED_BYTES


def _unit(estimates: tuple[Estimate, ...]) -> tuple[str, float]:
    largest = max((one.memory.total for one in estimates), default=0)
    return ("GB", 1e9) if largest >= 5e8 else ("MB", 1e6)


def _html_cells(cells: list[str], why: str) -> str:
    """Write one row: what speaks for a strategy stands under its name."""
    mark, label, *numbers = map(escape, cells)
    named = f'<div><strong>{label}</strong></div><div style="{_WHY}">{escape(why)}</div>'
    rest = "".join(f'<td style="{_RIGHT}">{one}</td>' for one in numbers)
    return f'<td style="{_LEFT}">{mark}</td><td style="{_LEFT}">{named}</td>{rest}'


def _cells(one: Estimate, scale: float, sizes: Sizes, is_best: bool) -> list[str]:
    numbers = {name: getattr(one.memory, name) / scale for name in _COLUMNS}
    told = {name: f"{value:.2f}" if value else "-" for name, value in numbers.items()}
    if sizes.kept is None:
        told["activations"] = "?"
    return ["→" if is_best else "", one.label, *told.values(), "yes" if one.fits else "no"]

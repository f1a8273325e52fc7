"""A picker as text: the same facts, choices and findings, for places without widgets."""

from __future__ import annotations

from collections.abc import Sequence

from notebook_accel.launch.precisions import Standing
from notebook_accel.launch.timing import Timings
from notebook_accel.ui.choices import offered
from notebook_accel.ui.model_size import Footprint, bytes_words
from notebook_accel.ui.picker_state import State, literal
from notebook_accel.ui.words import duration

MEMORY_COLUMNS = ("weights", "gradients", "Adam", "half copies", "DDP buckets", "total")


def text(state: State) -> str:
    """Write the whole picker."""
    told = state.outlook
    rows = [(name, literal(value), _about(state, name)) for name, value in state.values.items()]
    meaning = [told.ranks, told.batch] if "num_processes" in state.asked else []
    if "mixed_precision" in state.asked:
        meaning.append(told.precision)
    blocks = [
        _table(rows),
        "\n".join(meaning),
        memory_table(told.memory),
        timings_words(state.fresh_timings),
        "\n".join(map(str, told.findings)),
        _table([(f"choose({name}=...)", _possible(state, name)) for name in state.asked]),
        state.code,
    ]
    body = "\n\n".join(block for block in blocks if block)
    return f"{state.kind}\n" + "\n".join(f"  {line}".rstrip() for line in body.splitlines())


def standing_words(one: Standing) -> str:
    """Say how a precision runs: "native (AVX512-BF16)"."""
    return f"{one.mark} ({one.why})"


def timings_words(timings: Timings | None) -> str:
    """Write what was measured, in a line; empty if nothing was."""
    if timings is None:
        return ""
    threads = f", {timings.num_threads} thread{'s' if timings.num_threads > 1 else ''}"
    where = timings.device + (threads if timings.device == "cpu" else "")
    parts = []
    for row in timings.rows:
        name = "float32" if row.precision == "no" else row.precision
        if row.failure:
            parts.append(f"{name} failed ({row.failure})")
        elif row.precision == "no" or not row.speed:
            parts.append(f"{name} {small_duration(row.seconds)}")
        else:
            parts.append(f"{name} {small_duration(row.seconds)} ({times(row.speed)})")
    return f"{timings.size} x {timings.size} matrices on {where}: {', '.join(parts)}"


def times(speed: float) -> str:
    """Say a ratio to float32: "4.3 times as fast", "44 times slower"."""
    if speed >= 1.05:
        return f"{speed:.1f} times as fast"
    if speed <= 0.95:
        slower = 1 / speed
        return f"{slower:.1f} times slower" if slower < 10 else f"{slower:.0f} times slower"
    return "as fast"


def small_duration(seconds: float) -> str:
    """Write a time that may be far below a second: "0.52 ms"."""
    return f"{1000 * seconds:.2g} ms" if seconds < 0.01 else duration(seconds)


def memory_cells(row: Footprint) -> list[str]:
    """Write one precision's memory, a cell for each of MEMORY_COLUMNS."""
    parts = (row.weights, row.gradients, row.adam, row.copies, row.buckets, row.total)
    return [bytes_words(part) if part else "-" for part in parts]


def memory_table(rows: Sequence[Footprint]) -> str:
    """Write what a rank holds in each precision; empty without a model."""
    if not rows:
        return ""
    header = ("a rank holds", *MEMORY_COLUMNS)
    lines = [(row.precision, *memory_cells(row)) for row in rows]
    return _table([header, *lines]) + "\nactivations come on top: bf16 and fp16 halve most of them"


def _about(state: State, name: str) -> str:
    if name == "mixed_precision":
        picked = state.choice.mixed_precision
        return standing_words(next(one for one in state.standings if one.precision == picked))
    if name != "device":
        return ""
    device = state.choice.device
    if not isinstance(device, str):
        wanted = (device,) if isinstance(device, int) else device
        return "; ".join(one.label for one in state.gpus if one.value in wanted)
    if device == "cuda" and state.gpus:
        return "; ".join(one.label for one in state.gpus)
    return next((one.label for one in state.places if one.value == device), "")


def _possible(state: State, name: str) -> str:
    if name == "device":
        kinds = [literal(one.value) for one in state.places]
        numbers = [str(one.value) for one in state.gpus]
        some = [f"[{numbers[0]}, {numbers[-1]}]"] if len(numbers) > 2 else []
        return ", ".join([*kinds, *numbers, *some])
    if name == "mixed_precision":
        return ", ".join(f"{literal(one.precision)} {one.mark}" for one in state.standings)
    if name == "num_processes":
        return f"1 to {state.most_processes}" if state.most_processes > 1 else "1"
    choices = offered(name)
    return ", ".join(map(literal, choices)) if choices else "1 or more"


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Align columns by spaces."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)

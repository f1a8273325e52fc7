"""A picker as text: the same facts, choices and findings, for places without widgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest

from notebook_accel.config.budget import Budget
from notebook_accel.config.offers import Costed
from notebook_accel.config.settings import SETTINGS
from notebook_accel.config.words import size as size_words
from notebook_accel.config.written import literal
from notebook_accel.launch.precisions import Standing
from notebook_accel.launch.timing import Timings
from notebook_accel.ui import menu
from notebook_accel.ui.choices import offered
from notebook_accel.ui.picker_state import State


def text(state: State) -> str:
    """Write the whole picker."""
    told, timings = state.outlook, state.fresh_timings
    rows = [(name, literal(value), _about(state, name)) for name, value in state.values.items()]
    blocks = [
        _table(rows),
        _here(state),
        "\n".join(meaning(state)),
        _table(by_precision(state)) + (f"\n{ACTIVATIONS}" if told.memory else ""),
        _table(by_strategy(state)),
        "\n".join(filter(None, [_table(timing_rows(timings)), measured_on(timings)])),
        "\n".join(map(str, told.findings)),
        _table([row for name in state.asked for row in _possible_rows(state, name)]),
        "\n".join(_questions(state)),
        state.code,
    ]
    body = "\n\n".join(block for block in blocks if block)
    return f"{state.kind}\n" + "\n".join(f"  {line}".rstrip() for line in body.splitlines())


def meaning(state: State) -> list[str]:
    """What the choice means, in sentences: as far as this picker asks about it."""
    told = state.outlook
    asked = set(state.asked)
    sentences = [told.ranks, told.start] if asked & {"device", "num_processes"} else []
    sentences += [told.batch] if asked & {"num_processes", "gradient_accumulation_steps"} else []
    sentences += [told.precision] if "mixed_precision" in asked else []
    return [one for one in sentences if one]


def standing_words(one: Standing) -> str:
    """Say how a precision runs: "native (AVX512-BF16)"."""
    return "float32 throughout" if one.precision == "no" else f"{one.mark} ({one.why})"


def processes_range(state: State) -> str:
    """Say how many ranks there can be: "1 to 2"."""
    most = state.most_processes
    return f"1 to {most}" if most > 1 else "1"


def by_precision(state: State) -> list[list[str]]:
    """What a rank holds and what was measured, as rows of cells: a header, then the rows."""
    rows = [["a rank holds", *(one.precision for one in state.outlook.memory)]]
    for label, part in _PARTS.items():
        sizes = [part(one.memory) for one in state.outlook.memory]
        if any(sizes):
            rows.append([label, *(size_words(size) if size else "-" for size in sizes)])
    return rows if len(rows) > 1 else []


def by_strategy(state: State) -> list[list[str]]:
    """What a rank holds under each strategy, as rows of cells: a header, then the rows."""
    found = state.outlook.strategies
    if not found or "strategy" not in state.asked:
        return []
    in_which = f"in {state.choice.mixed_precision}" * (state.choice.mixed_precision != "no")
    rows = [
        [
            one.offer.label,
            size_words(one.memory.total)
            + (f" + {size_words(one.memory.host)} CPU" if one.memory.host else ""),
            _verdict(one),
        ]
        for one in found
    ]
    if state.sizes is not None and not state.sizes.has_plan:
        rows.append([f"tensor x {state.choice.num_processes}", "?", "needs a plan"])
    return [[f"strategy {in_which}".rstrip(), "a rank holds", ""], *rows]


def _verdict(one: Costed) -> str:
    """Say whether a strategy fits, or what would have to be installed before it does."""
    if one.missing and one.fits is not False:
        return f"needs {one.missing}"
    return {True: "fits", False: "too much", None: ""}[one.fits]


def timing_rows(timings: Timings | None) -> list[list[str]]:
    """What was measured, as rows of cells: a header, then the rows; none if nothing was."""
    return [] if timings is None else timings.table()


def measured_on(timings: Timings | None) -> str:
    """What was multiplied, and where; empty if nothing was measured."""
    return "" if timings is None else timings.about


_PARTS: dict[str, Callable[[Budget], int]] = {
    "weights": lambda one: one.weights,
    "gradients": lambda one: one.gradients,
    "Adam's states": lambda one: one.optimizer,
    "copies, buckets": lambda one: one.other,
    "together": lambda one: one.total,
    "on the CPU": lambda one: one.host,
}
ACTIVATIONS = "activations come on top: bf16 and fp16 halve most of them"


def _about(state: State, name: str) -> str:
    if name == "mixed_precision":
        picked = state.choice.mixed_precision
        return standing_words(next(one for one in state.standings if one.precision == picked))
    if name == "strategy":
        return menu.WORDS.get(menu.word_of(state.choice.strategy), "")
    return ""


def _here(state: State) -> str:
    """List what this machine has; a picker that does not ask for the device leaves it out."""
    if "device" not in state.asked:
        return ""
    single = [one for one in state.places if not (state.gpus and one.value == "cuda")]
    labels = [one.label for one in (*state.gpus, *single)]
    return _table([["here" if label is labels[0] else "", label] for label in labels])


def _possible_rows(state: State, name: str) -> list[tuple[str, str]]:
    """What ``choose`` takes for a setting; a launch takes the same, so some are wishes."""
    call = f"choose({name}=...)"
    if name != "strategy":
        return [(call, _possible(state, name))]
    words = [word for word in menu.offered_words() if word in SETTINGS[name].choices]
    wishes = [
        f"{entry.wish.__name__}({entry.together[0]}={state.choice.num_processes})"
        for entry in menu.MENU
        if entry.word not in SETTINGS[name].choices
    ]
    return [(call, ", ".join(map(literal, words)) + ","), ("", ", ".join(wishes))]


def _possible(state: State, name: str) -> str:
    if name == "device":
        kinds = [literal(one.value) for one in state.places]
        numbers = [str(one.value) for one in state.gpus]
        some = [f"[{numbers[0]}, {numbers[-1]}]"] if len(numbers) > 2 else []
        return ", ".join([*kinds, *numbers, *some])
    if name == "mixed_precision":
        return ", ".join(f"{literal(one.precision)} {one.mark}" for one in state.standings)
    if name == "num_processes":
        return processes_range(state)
    choices = offered(name)
    return ", ".join(map(literal, choices)) if choices else "1 or more"


def _questions(state: State) -> list[str]:
    """What the chosen strategy asks, as the line that answers."""
    entry = menu.entry_of(state.choice.strategy) if "strategy" in state.asked else None
    if entry is None or not entry.asks:
        return []
    wish = menu.wish_of(state.choice.strategy, state.choice.num_processes)
    said = ", ".join(f"{ask.field}={literal(getattr(wish, ask.field))}" for ask in entry.asks)
    return [f"choose(strategy={type(wish).__name__}({said}))"]


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Align columns by spaces."""
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

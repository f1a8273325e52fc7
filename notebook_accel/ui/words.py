"""A run in words: where it is, how it ended, what its curves say. Pure text, for every place."""

from __future__ import annotations

import math

from notebook_accel.config.words import counted, size
from notebook_accel.events.history import History
from notebook_accel.events.model import Task
from notebook_accel.events.rates import Rates
from notebook_accel.ui.series import is_loss, is_rate

SEPARATOR = " · "


def status(history: History, rates: Rates) -> str:
    """The line of a running run: pass, batch, step, loss, pace, time left in this pass."""
    found = [("loss", number(history.last("loss")))] if "loss" in history else []
    found += [("lr", brief(history.last("lr")))] if "lr" in history else []
    parts = [*where(rates), *((name, value, "") for name, value in found), *pace(rates)]
    texts = [" ".join(word for word in part if word) for part in parts]
    return SEPARATOR.join(texts) or "waiting for the first step"


def where(rates: Rates) -> list[tuple[str, str, str]]:
    """How far the run is, in triples of a word, a number and a unit: pass, batch, step."""
    newest = rates.newest
    if newest is None:
        return []
    batches = "" if newest.num_batches is None else f"/{newest.num_batches:,}"
    return [
        ("epoch", f"{newest.epoch}", ""),
        ("batch", f"{newest.batch:,}{batches}", ""),
        ("step", f"{rates.step:,}", ""),
    ]


def pace(rates: Rates) -> list[tuple[str, str, str]]:
    """How fast the run goes, and when this pass will end, in such triples."""
    parts, now = [], rates.pace()
    if now.samples_per_s:
        parts.append(("", rate(now.samples_per_s), "samples/s"))
    elif now.steps_per_s:
        parts.append(("", rate(now.steps_per_s), "steps/s"))
    if now.pass_left_s is not None and now.pass_left_s >= 1:
        parts.append(("epoch ends in", duration(round(now.pass_left_s)), ""))
    return parts


def latest(history: History, name: str) -> str:
    """The newest value of a series."""
    return said(name, history.last(name))


def said(name: str, value: float) -> str:
    """A value of the series ``name``, the same in every picture and text."""
    return brief(value) if is_rate(name) else precise(value)


def summary(rates: Rates, seconds: float, ending: str = "") -> str:
    """The line of a run that is over; ``ending`` says why when it did not run to its end.

    It tells of this run's own work: "84 steps (60 to 144)" of one that began at a checkpoint.
    """
    parts = [ending] if ending else []
    if rates.steps:
        stretch = f" ({rates.from_step:,} to {rates.step:,})" if rates.from_step else ""
        parts.append(f"{counted(rates.steps, 'step')}{stretch} in {duration(seconds)}")
    if rates.samples and seconds > 0:
        parts.append(f"{rate(rates.samples / seconds)} samples/s")
    return SEPARATOR.join(parts) or f"done in {duration(seconds)}"


def task(one: Task) -> str:
    """How far something long is: "saving checkpoint 3 of 10 files"."""
    where = "" if one.rank < 0 else f" (rank {one.rank})"
    if one.total is None:
        done = f" {number(one.done)} {one.unit}".rstrip() if one.done else ""
        return f"{one.name}{done}{where}"
    if one.unit == "bytes":
        return f"{one.name} {size(int(one.done))} of {size(int(one.total))}{where}"
    unit = f" {one.unit}" if one.unit else ""
    return f"{one.name} {one.done:,.10g} of {one.total:,.10g}{unit}{where}"


def facts(history: History) -> str:
    """The picture in words, one line per series."""
    return "\n".join(fact(history, name) for name in history)


def fact(history: History, name: str) -> str:
    """One series in words."""
    values, steps = history[name], history.steps(name)
    if is_rate(name):
        return f"{name} {_way(values)}"
    if len(values) == 1:
        return f"{name} {precise(values[0])} at step {steps[0]}"
    text = f"{name} {precise(values[0])} -> {precise(values[-1])} over {_span(steps)}"
    finite = finite_points(history, name)
    if len(finite) > 1:
        best = min(finite) if is_loss(name) else max(finite, key=lambda pair: pair[0])
        word = "best" if is_loss(name) else "highest"
        text += f", {word} {precise(best[0])} at {best[1]}"
    if len(finite) < len(values):
        first = next(step for v, step in zip(values, steps, strict=True) if not math.isfinite(v))
        text += f"; {len(values) - len(finite)} not finite, the first at {first}"
    return text


def finite_points(history: History, name: str) -> list[tuple[float, int]]:
    """The values of a series that are numbers, with their steps."""
    pairs = zip(history[name], history.steps(name), strict=True)
    return [(value, step) for value, step in pairs if math.isfinite(value)]


def _way(values: list[float]) -> str:
    """What a setting was, in its first, greatest, least and last value."""
    first, last = brief(values[0]), brief(values[-1])
    between = [brief(value) for value in (max(values), min(values))]
    turns = [value for value in between if value not in (first, last)]
    return " -> ".join([first, *turns, *([last] if turns or last != first else [])])


def _span(steps: list[int]) -> str:
    first, last = steps[0], steps[-1]
    if len(steps) <= (last - first + 1) // 2:
        return f"{len(steps)} points up to step {last}"
    return f"steps {first} to {last}" if first > 1 else f"{last - first + 1} steps"


def precise(value: float) -> str:
    """A value to three decimals, or three digits where that says more."""
    size = abs(value)
    if not math.isfinite(value) or size == 0:
        return f"{value:g}"
    return f"{value:.3f}" if 0.01 <= size < 1000 else f"{value:.3g}"


def number(value: float) -> str:
    """A number as a person would say it: three decimals when small, thousands when large."""
    size = abs(value)
    if not size < float("inf") or size == 0:
        return f"{value:g}"
    if size >= 1e15:  # whose digits nobody counts
        return f"{value:.3g}"
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.0f}"
    return f"{value:.3f}" if size >= 0.01 else f"{value:.2g}"


def brief(value: float) -> str:
    """A setting as a person would type it: 0.001, 3e-05."""
    return f"{value:.3g}"


def rate(value: float) -> str:
    """A number of things per second; decimals only where they tell something."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def duration(seconds: float) -> str:
    """Seconds as 12 ms, 4.1 s, 2:05 min or 1:02:05 h; whole ones without decimals."""
    if 0 < seconds < 0.1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds} s" if isinstance(seconds, int) else f"{seconds:.1f} s"
    whole = round(seconds)
    minutes, hours = whole // 60 % 60, whole // 3600
    if hours:
        return f"{hours}:{minutes:02d}:{whole % 60:02d} h"
    return f"{minutes}:{whole % 60:02d} min"

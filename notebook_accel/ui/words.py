"""A run in words: where it is, how it ended, what its curves say. Pure text, for every place."""

from __future__ import annotations

import math

from notebook_accel.events.history import History, Rates

SEPARATOR = " · "


def status(history: History, rates: Rates) -> str:
    """The line of a running run: pass, batch, step, loss, pace, time left in this pass."""
    parts = []
    newest, pace = rates.newest, rates.pace()
    if newest is not None:
        parts.append(f"epoch {newest.epoch}")
        batches = "" if newest.num_batches is None else f"/{newest.num_batches:,}"
        parts.append(f"batch {newest.batch:,}{batches}")
        parts.append(f"step {rates.step:,}")
    if "loss" in history:
        parts.append(f"loss {number(history.last('loss'))}")
    if pace.samples_per_s:
        parts.append(f"{rate(pace.samples_per_s)} samples/s")
    elif pace.steps_per_s:
        parts.append(f"{rate(pace.steps_per_s)} steps/s")
    if pace.pass_left_s is not None and pace.pass_left_s >= 1:
        parts.append(f"epoch ends in {duration(round(pace.pass_left_s))}")
    return SEPARATOR.join(parts) or "waiting for the first step"


def summary(rates: Rates, seconds: float, ending: str = "") -> str:
    """The line of a run that is over; ``ending`` says why when it did not run to its end."""
    parts = [ending] if ending else []
    if rates.step:
        word = "step" if rates.step == 1 else "steps"
        parts.append(f"{rates.step:,} {word} in {duration(seconds)}")
    if rates.samples and seconds > 0:
        parts.append(f"{rate(rates.samples / seconds)} samples/s")
    return SEPARATOR.join(parts) or f"done in {duration(seconds)}"


def is_loss(name: str) -> bool:
    """True for a series of which less is better."""
    return any(word in name.lower() for word in ("loss", "error", "perplexity"))


def facts(history: History) -> str:
    """The picture in words, one line per series."""
    return "\n".join(_fact(history, name) for name in history)


def _fact(history: History, name: str) -> str:
    values, steps = history[name], history.steps(name)
    if len(values) == 1:
        return f"{name} {precise(values[0])} at step {steps[0]}"
    text = f"{name} {precise(values[0])} -> {precise(values[-1])} over {_span(steps)}"
    finite = [
        (value, step) for value, step in zip(values, steps, strict=True) if math.isfinite(value)
    ]
    if len(finite) > 1:
        best = min(finite) if is_loss(name) else max(finite, key=lambda pair: pair[0])
        word = "best" if is_loss(name) else "highest"
        text += f", {word} {precise(best[0])} at {best[1]}"
    if len(finite) < len(values):
        first = next(step for v, step in zip(values, steps, strict=True) if not math.isfinite(v))
        text += f"; {len(values) - len(finite)} not finite, the first at {first}"
    return text


def _span(steps: list[int]) -> str:
    if len(steps) > steps[-1] // 2:
        return f"{steps[-1]} steps"
    return f"{len(steps)} points up to step {steps[-1]}"


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
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.0f}"
    return f"{value:.3f}" if size >= 0.01 else f"{value:.2g}"


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

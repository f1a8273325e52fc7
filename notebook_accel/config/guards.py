"""Which guard rails are wanted: all, but for those that a person switches off by name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from notebook_accel.errors import ConfigError

VARIABLE = "NOTEBOOK_ACCEL_GUARDS"

NAMES = {
    "discarded-prepare": "the result of prepare() is thrown away",
    "direct-backward": "loss.backward() while losses are scaled or accumulated",
    "plain-backward": "loss.backward() in a launched run: no live curve, nothing to accumulate",
    "unprepared": "several ranks train, and nothing was prepared",
    "unprepared-model": "several ranks train a model that was not prepared",
    "unprepared-optimizer": "a model was prepared, and the optimizer that steps on it was not",
    "unprepared-loader": "several ranks each read all of a loader that was not prepared",
    "scaled-norm": "torch's own clip_grad_norm_ measures gradients of a scaled loss",
    "no-accumulate": "accumulation is asked for and accumulate() never entered",
    "unsynced-forward": "gradients of a forward that went past the wrapper stay apart",
    "scheduler": "an unprepared scheduler steps on every micro-batch",
    "device": "a model computes on a device that is not this rank's",
    "wrapped-save": "a wrapped model is saved",
    "plain-gather": "gather() keeps the samples repeated in the last batch",
    "late-gather": "gather_for_metrics() after the loop cannot leave repeated samples out",
    "uncut-rows": "gather_for_metrics() cannot leave repeats out of a list that was filtered",
    "effective-batch": "what an optimizer step sees changed with the number of processes",
    "unpinned": "non_blocking copies from memory that is not pinned",
    "slow-loader": "training waits for its data",
    "file-race": "a file is read that another rank has just written, with no barrier between",
    "unopened-trackers": "log() before init_trackers(): the trackers asked for get nothing",
    "kernel-global": "a variable of the notebook changed in the worker only",
}

_off: set[str] = set()  # by without_guards, in this process


def wanted(name: str) -> bool:
    """Tell whether the guard rail ``name`` is on.

    Errors: ConfigError for a variable that names no guard rail.
    """
    assert name in NAMES
    return name not in _off and name not in _off_by_variable(os.environ)


@contextmanager
def without_guards(*names: str) -> Iterator[None]:
    """Switch guard rails off inside the block, all of them or those named.

    In a launched function it counts for its rank; ``NOTEBOOK_ACCEL_GUARDS="-plain-gather"`` counts
    for everything ("off" for all, several names with commas between).

    Errors: ConfigError for a name that no guard rail has.
    """
    before = set(_off)
    _off.update(_known(names) if names else NAMES)
    try:
        yield
    finally:
        _off.clear()
        _off.update(before)


def _off_by_variable(env: Mapping[str, str]) -> set[str]:
    text = env.get(VARIABLE, "").strip()
    if text.lower() in ("off", "no", "0", "none"):
        return set(NAMES)
    words = [word.strip() for word in text.split(",") if word.strip()]
    return _known([word.removeprefix("-") for word in words])


def _known(names: list[str] | tuple[str, ...]) -> set[str]:
    for name in names:
        if name not in NAMES:
            raise ConfigError(
                f"there is no guard rail {name!r}",
                "they are: " + ", ".join(NAMES),
                f'write without_guards("plain-gather"), or {VARIABLE}="-plain-gather"',
            )
    return set(names)

"""What a person is told about the settings of a launch, in a cell and in a terminal alike."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from notebook_accel.config.absent import idle
from notebook_accel.config.places import accelerates_path
from notebook_accel.config.resolve import RunConfig
from notebook_accel.config.settings import SETTINGS
from notebook_accel.config.show import show
from notebook_accel.config.unused import unused
from notebook_accel.config.variables import strangers


def notes(
    config: RunConfig, env: Mapping[str, str], file: str | os.PathLike[str] | None = None
) -> Iterator[str]:
    """Say which values stand elsewhere, and what was chosen or set and changes nothing.

    ``file`` is the one that was read: it is named even where nothing of it counts.
    """
    yield from _elsewhere(config, file)
    for variable, near in strangers(env):
        yield f"the variable {variable} is not known; did you mean {near}?"
    yield from unused(config)
    for name in idle(config):
        yield f"{config.call(name)} changes nothing in this version"


def _elsewhere(config: RunConfig, file: str | os.PathLike[str] | None) -> Iterator[str]:
    """Name the values that neither the cell nor the command line shows, and where they stand."""
    says: dict[str, list[str]] = {}
    for name, value in config.given().items():
        origin = config.origin(name)
        if name == "num_cpu_threads_per_process":
            continue  # the line of the launch says it
        if origin.kind in ("environment", "file") and value != SETTINGS[name].default:
            place = _place(origin.path) if origin.path else "the environment"
            says.setdefault(place, []).append(f"{name}={show(name, value)}")
    if file is not None:
        says.setdefault(_place(os.fspath(file)), [])
    for place, values in says.items():
        yield f"from {place}: {', '.join(values) or 'nothing that counts here'}"


def _place(path: str) -> str:
    theirs = accelerates_path()
    is_theirs = path in (str(theirs), str(theirs.with_suffix(".json")))
    return f"{path} (Accelerate's default file)" if is_theirs else path

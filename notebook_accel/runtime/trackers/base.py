"""What every tracker is, and plain forms of the values that it is given."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from torch import Tensor

from notebook_accel.errors import MissingPackage, RuntimeMisuse
from notebook_accel.ranks.place import placement_here

LONGEST_LIST = 64


class TrackerIncomplete(RuntimeMisuse, NotImplementedError):
    """A tracker class lacks what every tracker must say about itself."""


class GeneralTracker:
    """Keeps a run's configuration and numbers somewhere; a new backend is a subclass.

    A subclass has ``name``, ``requires_logging_directory`` (it is then made with ``logging_dir``
    too) and a property ``tracker`` that gives the backend's own object. The constructor takes the
    project's name and only notes its arguments; ``start`` opens the run. ``needs_steps`` asks for
    a number where a person gave no step.

    Ranks: an Accelerator makes and calls trackers on rank 0 only; ``on_main_process`` keeps methods
    that a person calls on every rank to it, unless ``main_process_only`` is False.
    """

    name: str
    requires_logging_directory: bool
    main_process_only = True
    needs_steps = False

    def __init__(self, _blank: bool = False) -> None:
        if not _blank:
            check_complete(type(self))

    def start(self) -> None:
        """Open the run."""

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep the configuration of the run, whatever types its values have."""

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Keep ``values`` of ``step``."""

    def finish(self) -> None:
        """Close the run: after it everything is where it belongs."""


class BlankTracker(GeneralTracker):
    """What ranks without a tracker get: it takes every call and does nothing."""

    name = "blank"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__(_blank=True)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


def check_complete(cls: type) -> None:
    """Check that a tracker class says what every tracker must.

    Errors: TrackerIncomplete (a NotImplementedError) naming what is missing.
    """
    wanted = ("name", "requires_logging_directory", "tracker")
    missing = [name for name in wanted if not hasattr(cls, name)]
    if missing:
        raise TrackerIncomplete(
            f"{cls.__name__} has no " + ", no ".join(f"`{name}`" for name in missing),
            "a tracker is found by its name, given a directory if it needs one, and gives its "
            "backend's own object",
            'write `name = "..."`, `requires_logging_directory = False` and a property `tracker`',
        )


def on_main_process(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a tracker's method to run on rank 0 only, unless its class says otherwise."""

    @functools.wraps(function)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "main_process_only", True) and placement_here().rank != 0:
            return None
        return function(self, *args, **kwargs)

    return wrapped


def load_package(package: str, extra: str) -> Any:
    """Import an optional package.

    Errors: MissingPackage naming the extra to install.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise MissingPackage(
            f"log_with={extra!r} needs the package {package!r}, which is not installed",
            "trackers other than jsonl and csv stand on packages of their own",
            f'pip install "notebook-accel[{extra}]", or log_with="jsonl"',
        ) from error


def plain(value: Any) -> Any:
    """Give ``value`` as numbers, strings, lists and dicts; anything else by its ``repr``."""
    if isinstance(value, Enum):
        return plain(value.value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [one.name for one in dataclasses.fields(value)]
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Tensor):
        value = value.detach().cpu()
    if hasattr(value, "tolist") and hasattr(value, "shape"):  # tensors, numpy arrays and scalars
        return value.tolist() if math.prod(value.shape) <= LONGEST_LIST else repr(value)
    return repr(value)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Give nested ``values`` under names with dots, each a number, a boolean or a string."""
    found: dict[str, Any] = {}
    for name, value in plain(values).items():
        if isinstance(value, dict):
            found.update(flat(value, f"{prefix}{name}."))
        else:
            known = isinstance(value, (bool, int, float, str))
            found[f"{prefix}{name}"] = value if known else str(value)
    return found


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Give those of ``values`` that are numbers, whatever library made them."""
    known = {name: plain(value) for name, value in values.items()}
    return {name: value for name, value in known.items() if isinstance(value, (int, float))}

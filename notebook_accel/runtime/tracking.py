"""Which trackers there are and which a run uses: names, packages, entry points, instances."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from notebook_accel.errors import ConfigError
from notebook_accel.runtime.trackers.base import (
    GeneralTracker,
    check_complete,
    load_package,
)

# An entry point of this group has a tracker's name and names its class.
ENTRY_POINT_GROUP = "notebook_accel.trackers"


@dataclass(frozen=True)
class Shelf:
    """Where a built-in tracker lies, and the packages of which it needs one."""

    module: str
    cls: str
    packages: tuple[str, ...] = ()

    def is_installed(self) -> bool:
        """Tell whether a package that it needs is there."""
        return not self.packages or any(map(importlib.util.find_spec, self.packages))

    def load(self) -> type[GeneralTracker]:
        """Give the class."""
        module = importlib.import_module(f"notebook_accel.runtime.trackers.{self.module}")
        cls: type[GeneralTracker] = getattr(module, self.cls)
        return cls


BUILT_IN = {
    "aim": Shelf("experiments", "AimTracker", ("aim",)),
    "clearml": Shelf("clearml", "ClearMLTracker", ("clearml",)),
    "comet_ml": Shelf("experiments", "CometMLTracker", ("comet_ml",)),
    "csv": Shelf("files", "CSVTracker"),
    "dvclive": Shelf("experiments", "DVCLiveTracker", ("dvclive",)),
    "jsonl": Shelf("files", "JSONLTracker"),
    "mlflow": Shelf("experiments", "MLflowTracker", ("mlflow",)),
    "swanlab": Shelf("hosted", "SwanLabTracker", ("swanlab",)),
    "tensorboard": Shelf("tensorboard", "TensorBoardTracker", ("tensorboard", "tensorboardX")),
    "trackio": Shelf("hosted", "TrackioTracker", ("trackio",)),
    "wandb": Shelf("hosted", "WandBTracker", ("wandb",)),
}
_registered: dict[str, type[GeneralTracker]] = {}


def register_tracker_class(cls: type[GeneralTracker]) -> type[GeneralTracker]:
    """Let ``log_with`` know a tracker class by its ``name``; usable as a decorator.

    Errors: TrackerIncomplete for a class without name, directory wish or ``tracker``.
    """
    check_complete(cls)
    _registered[cls.name] = cls
    return cls


def known_trackers() -> list[str]:
    """Give the names that ``log_with`` knows, installed or not."""
    return sorted({*BUILT_IN, *_registered, *(one.name for one in _outside())})


def get_available_trackers() -> list[str]:
    """Give the names of trackers whose packages are installed."""
    return [name for name in known_trackers() if name not in BUILT_IN or _installed(name)]


def filter_trackers(
    log_with: Any, logging_dir: Any = None
) -> list[type[GeneralTracker] | GeneralTracker]:
    """Give the classes and instances that ``log_with`` names, each once, in its order.

    It is a name, a tracker, or a list of them; "all" stands for every installed tracker that can
    run, which for those that need a directory means that there is ``logging_dir``.

    Errors: ConfigError for an unknown name or a missing directory; MissingPackage naming the extra.
    """
    chosen: dict[Any, type[GeneralTracker] | GeneralTracker] = {}
    for wish in _wishes(log_with):
        if isinstance(wish, GeneralTracker):
            check_complete(type(wish))
            chosen[id(wish)] = wish
            continue
        for name in get_available_trackers() if wish == "all" else [wish]:
            cls = find_class(name)
            if not cls.requires_logging_directory or logging_dir is not None:
                chosen[name] = cls
            elif wish != "all":
                raise ConfigError(
                    f"log_with={name!r} needs a directory, and there is none",
                    "it writes files, and nobody said where",
                    'write Accelerator(log_with=..., project_dir="runs")',
                )
    return list(chosen.values())


def find_class(name: str) -> type[GeneralTracker]:
    """Give the tracker class of that name: registered, built in, or another package's.

    Errors: ConfigError for an unknown name; MissingPackage naming the extra to install.
    """
    if name in _registered:
        return _registered[name]
    if name in BUILT_IN:
        shelf = BUILT_IN[name]
        if not shelf.is_installed():
            load_package(shelf.packages[0], name)
        return shelf.load()
    for entry in _outside():
        if entry.name == name:
            cls: type[GeneralTracker] = entry.load()
            check_complete(cls)
            return cls
    raise ConfigError(
        f"log_with={name!r} is no tracker",
        "known are: " + ", ".join(known_trackers()) + ', and "all"',
        "pass one of them, or a class of your own by register_tracker_class",
    )


def _installed(name: str) -> bool:
    return name in _registered or BUILT_IN[name].is_installed()


def _outside() -> Iterable[Any]:
    return entry_points(group=ENTRY_POINT_GROUP)


def _wishes(log_with: Any) -> Iterator[str | GeneralTracker]:
    if log_with is None:
        return
    many = log_with if isinstance(log_with, (list, tuple, set)) else [log_with]
    for one in many:
        if isinstance(one, GeneralTracker):
            yield one
        else:
            name = str(getattr(one, "value", one))  # an enum of strings counts by its value
            yield name if name in _registered else name.lower()

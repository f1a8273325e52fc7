"""What a call of ``notebook_launcher`` asks for: its arguments, the environment and a file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from notebook_accel.config.absent import refuse_unbuilt
from notebook_accel.config.fp8 import refuse_without_library
from notebook_accel.config.missing import refuse_missing_files
from notebook_accel.config.placement import Placement
from notebook_accel.config.places import find_default
from notebook_accel.config.resolve import RunConfig, resolve
from notebook_accel.config.schema import LaunchSettings, check
from notebook_accel.config.settings import by_variable
from notebook_accel.config.store import ConfigFile, read
from notebook_accel.config.strategy import check_launch, refuse_name, wish_of
from notebook_accel.config.wishes import Strategy, refuse_class
from notebook_accel.errors import ConfigError, MissingPackage, NotHere
from notebook_accel.launch.notes import notes

# What an Accelerator in a worker is told in so many words, so that no variable beats it.
_FOR_ACCELERATORS = ("mixed_precision", "gradient_accumulation_steps", "strategy")


class HasConfig(Protocol):
    """What has a RunConfig: a picker."""

    @property
    def run_config(self) -> RunConfig:
        """What was picked."""
        ...


@dataclass(frozen=True)
class Asked:
    """What a launch was asked for.

    ``settings`` are this machine's, ``words`` what Accelerators are told, ``env`` what workers get
    in their environment, ``notes`` what the person is told: which values are not in the cell;
    ``default`` is the file that counts without being named.
    """

    config: RunConfig
    settings: LaunchSettings
    words: dict[str, Any]
    env: dict[str, str]
    notes: tuple[str, ...]
    default: Path | None = None

    def check_strategy(self, place: Placement) -> None:
        """Refuse a strategy that cannot be in the world of ``place``, before any rank starts.

        Errors: ConfigError; MissingPackage; NotHere.
        """
        env = {**os.environ, **self.env}
        with _offering_a_way_around(self.default), naming_the_source(self.config):
            check_launch(self.config, self.words.get("wish"), env, place)


def asked(config: Any, arguments: Mapping[str, Any], env: Mapping[str, str] | None) -> Asked:
    """Find what a launch is to do: arguments, then the environment, then the file.

    ``config`` is the path of a file, a RunConfig, something that has one (a picker), or None: then
    the default file counts, if there is one. ``num_processes`` among the arguments is per machine;
    in files and RunConfigs it counts all machines.

    Errors: ConfigError; NotHere for what this version has no engine for.
    """
    env = dict(env or {})
    _refuse_unmade(config)
    wish = arguments.get("strategy") or getattr(config, "wish", None)
    refuse_class(wish)
    refuse_name(wish)
    wish = wish_of(wish)
    if isinstance(wish, Strategy):  # a word is a setting like others; a wish is more than that
        arguments = {**arguments, "strategy": None}
    around = {**os.environ, **env}
    default = find_default(around) if config is None else None
    with _offering_a_way_around(default):
        file, whole = _file_and_config(config if default is None else default)
        found = _resolved(arguments, around, file, whole)
        with naming_the_source(found):
            settings = _settings_of(found)
            refuse_unbuilt(found)
            refuse_without_library(found)
            refuse_missing_files(found)
    written = {
        variable: text
        for variable, text in found.environment().items()
        if found.origin(by_variable()[variable].name).kind != "environment"
    }
    words = {
        name: found[name] for name in _FOR_ACCELERATORS if found.origin(name).kind == "argument"
    }
    if isinstance(wish, Strategy):
        words["wish"] = wish
    return Asked(
        found,
        settings,
        words,
        {**written, **env},
        tuple(notes(found, around, None if file is None else file.path)),
        default,
    )


@contextmanager
def naming_the_source(config: RunConfig) -> Iterator[None]:
    """Add to errors of the block where the value comes from that they complain about."""
    try:
        yield
    except ConfigError as error:
        name = error.what.partition("=")[0]
        if name in config.given() and config.origin(name).kind != "argument":
            raise error.but(what=f"{error.what} (from {config.source(name)})") from None
        raise


@contextmanager
def _offering_a_way_around(default: Path | None) -> Iterator[None]:
    """Tell of a file that nobody named how to launch without it."""
    try:
        yield
    except (ConfigError, MissingPackage, NotHere) as error:
        if default is None or str(default) not in error.what:
            raise
        way = "or pass config=RunConfig() to launch without this file"
        raise error.but(fix=f"{error.fix}; {way}") from None


def _refuse_unmade(config: Any) -> None:
    if isinstance(config, type) and (
        issubclass(config, RunConfig) or hasattr(config, "run_config")
    ):
        raise ConfigError(
            f"config={config.__name__} is a class",
            "a launch is told by one that was made, and has values",
            f"make one: config={config.__name__}()",
        )


def _file_and_config(config: Any) -> tuple[ConfigFile | None, RunConfig | None]:
    config = getattr(config, "run_config", config)  # a picker
    if config is None or isinstance(config, RunConfig):
        return None, config
    if isinstance(config, (str, os.PathLike)):
        return read(config), None
    raise ConfigError(
        f"config={config!r} is no configuration",
        "a launch can be told by the path of a file, a RunConfig, or a picker",
        'write config="config.yaml", or config=RunConfig(num_processes=2)',
    )


def _resolved(
    arguments: Mapping[str, Any],
    env: Mapping[str, str],
    file: ConfigFile | None,
    whole: RunConfig | None,
) -> RunConfig:
    """Put everything together; the call counts the ranks of this machine."""
    local = arguments["num_processes"]
    rest = {name: value for name, value in arguments.items() if name != "num_processes"}
    found = resolve(rest, env, file, whole)
    if local is None:
        return found
    check("num_processes", local)
    return found.but(num_processes=local * found.num_nodes)


def _settings_of(config: RunConfig) -> LaunchSettings:
    values = {field.name: config[field.name] for field in fields(LaunchSettings)}
    return LaunchSettings(**{**values, "num_processes": config.num_local_processes})

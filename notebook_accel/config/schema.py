"""The settings of a call of ``notebook_launcher``: a part of all, valid by construction."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from notebook_accel.config import values
from notebook_accel.config.catalog.setting import DEFAULT_PRECISION, given
from notebook_accel.config.resolve import RunConfig
from notebook_accel.config.settings import SETTINGS
from notebook_accel.config.values import check_choice

__all__ = [
    "DEFAULT_PRECISION",
    "DEVICES",
    "ON_INTERRUPT",
    "PRECISIONS",
    "START_METHODS",
    "LaunchSettings",
    "check",
    "check_choice",
    "check_node",
    "given",
]


def built(name: str) -> tuple[Any, ...]:
    """Give the choices of a setting that this version has."""
    one = SETTINGS[name]
    return tuple(choice for choice in one.choices if choice not in one.coming)


PRECISIONS: Sequence[str] = built("mixed_precision")
START_METHODS: Sequence[str] = built("start_method")
DEVICES: Sequence[str] = built("device")
ON_INTERRUPT: Sequence[str] = built("on_interrupt")


def setting(name: str, **how: Any) -> Any:
    """Give a field for the setting ``name``: its default and, as metadata, its declaration."""
    one = dataclasses.replace(SETTINGS[name], choices=built(name))
    facts = {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}
    return dataclasses.field(default=one.default, metadata=facts, **how)


@dataclass(frozen=True, kw_only=True)
class LaunchSettings:
    """What a launch was asked for, valid by construction.

    ``num_processes`` counts the ranks on this machine.

    Errors: ConfigError naming the value, what is possible and the call to write.
    """

    num_processes: int | None = setting("num_processes")
    mixed_precision: str = setting("mixed_precision")
    device: str | int | list[int] | None = setting("device", hash=False)
    start_method: str = setting("start_method")
    max_restarts: int = setting("max_restarts")
    timeout_s: float | None = setting("timeout_s")
    on_interrupt: str = setting("on_interrupt")
    num_nodes: int = setting("num_nodes")
    node_rank: int = setting("node_rank")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check(field.name, getattr(self, field.name))
        check_node(self.node_rank, self.num_nodes)


def check_node(node_rank: int, num_nodes: int) -> None:
    """Raise ConfigError unless ``node_rank`` is one of ``num_nodes`` machines."""
    RunConfig(node_rank=node_rank, num_nodes=num_nodes)


def check(name: str, value: object) -> None:
    """Raise ConfigError unless ``value`` is possible for the launch setting ``name``."""
    values.check(dataclasses.replace(SETTINGS[name], choices=built(name)), value)

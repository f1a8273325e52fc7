"""A training loop's settings: argument, else launch, else environment, else default.

The first two are what somebody asked for in so many words, so a variable never beats them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from notebook_accel.config.absent import refuse_unbuilt
from notebook_accel.config.resolve import RunConfig, resolve
from notebook_accel.config.settings import SETTINGS, by_variable
from notebook_accel.config.sources import ARGUMENT
from notebook_accel.config.values import read
from notebook_accel.config.variables import from_variables


def settings_of(launch: Mapping[str, Any], **arguments: Any) -> RunConfig:
    """Find all settings of an Accelerator that was given ``arguments``.

    A wish among what the launch said is no setting. Arguments may be text: "2" and 2.0 are two.
    The variables are read now, not when the process started.

    Errors: ConfigError; NotHere for what this version has no engine for.
    """
    given = {name: _plain(name, value) for name, value in arguments.items() if value is not None}
    told = {name: value for name, value in launch.items() if name in SETTINGS}
    config = resolve({**told, **given})
    refuse_unbuilt(config)
    return config


def setting_of(name: str, value: Any) -> Any:
    """Read one setting that an Accelerator is given by itself, as ``settings_of`` reads all.

    Errors: ConfigError for what it cannot be.
    """
    return settings_of({}, **{name: value})[name]


def from_env(name: str) -> Any:
    """Read one setting by its variables, whatever the others say; else its default.

    Errors: ConfigError naming the variable.
    """
    own = [variable for variable, one in by_variable().items() if one.name == name]
    found = from_variables({one: os.environ[one] for one in own if one in os.environ})
    return found[name][0] if name in found else SETTINGS[name].default


def _plain(name: str, value: Any) -> Any:
    """Take what is as good as the right kind: an enum, text, 2.0, numbers of other libraries."""
    value = getattr(value, "value", value)
    if isinstance(value, str):
        return read(SETTINGS[name], value, ARGUMENT)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, bool) or not hasattr(value, "__index__") else int(value)

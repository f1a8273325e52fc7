"""A training loop's settings: argument, else launch, else environment, else default.

The first two are what somebody asked for in so many words, so a variable never beats them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from notebook_accel.config.absent import refuse_unbuilt
from notebook_accel.config.booleans import read_boolean
from notebook_accel.config.resolve import RunConfig, resolve
from notebook_accel.config.settings import SETTINGS
from notebook_accel.config.sources import ARGUMENT
from notebook_accel.config.values import read


def settings_of(
    launch: Mapping[str, Any], env: Mapping[str, str] | None = None, **arguments: Any
) -> RunConfig:
    """Find all settings of an Accelerator that was given ``arguments``.

    A wish among what the launch said is no setting. Arguments may be text: "2" and 2.0 are two.
    The variables are read now, not when the process started.

    Errors: ConfigError; NotHere for what this version has no engine for.
    """
    given = {name: _plain(name, value) for name, value in arguments.items() if value is not None}
    told = {name: value for name, value in launch.items() if name in SETTINGS}
    config = resolve({**told, **given}, env)
    refuse_unbuilt(config)
    return config


def mixed_precision(
    given: Any, launch: Mapping[str, Any], env: Mapping[str, str] | None = None
) -> str:
    """Find the precision of forward passes: "no", "bf16", "fp16" or "fp8".

    Errors: ConfigError listing the choices.
    """
    return str(settings_of(launch, env, mixed_precision=given).mixed_precision)


def accumulation_steps(
    given: Any, launch: Mapping[str, Any], env: Mapping[str, str] | None = None
) -> int:
    """Find how many micro-batches make one optimizer step; 2.0 and "2" are read as 2.

    Errors: ConfigError for anything that is not a whole number of at least 1.
    """
    steps: int = settings_of(launch, env, gradient_accumulation_steps=given)[
        "gradient_accumulation_steps"
    ]
    return steps


def wants_cpu() -> bool:
    """Tell whether the environment keeps this process on the CPU."""
    return flag_from_env("ACCELERATE_USE_CPU")


def flag_from_env(name: str, env: Mapping[str, str] | None = None) -> bool:
    """Read a yes or no from the environment; not there, or empty, is no.

    Errors: ConfigError for a word that is neither.
    """
    env = os.environ if env is None else env
    return bool(env.get(name)) and read_boolean(env[name], f"the environment variable {name}")


def device_from_env() -> str | None:
    """Read which device a process computes on that is alone, if the environment names one."""
    return os.environ.get("ACCELERATE_TORCH_DEVICE") or None


def log_level_from_env() -> str | None:
    """Read the level at which ``get_logger`` logs, if the environment names one."""
    return os.environ.get("ACCELERATE_LOG_LEVEL") or None


def _plain(name: str, value: Any) -> Any:
    """Take what is as good as the right kind: an enum, text, 2.0, numbers of other libraries."""
    value = getattr(value, "value", value)
    if isinstance(value, str):
        return read(SETTINGS[name], value, ARGUMENT)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, bool) or not hasattr(value, "__index__") else int(value)

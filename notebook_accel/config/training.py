"""How a training loop's settings are found: argument, else launch, else environment, else default.

Pure functions of what was given; the environment's names are Accelerate's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from notebook_accel.config.booleans import read_boolean
from notebook_accel.config.schema import PRECISIONS
from notebook_accel.errors import ConfigError


def mixed_precision(
    given: Any, launch: Mapping[str, Any], env: Mapping[str, str] | None = None
) -> str:
    """Find the precision of forward passes: "no", "bf16" or "fp16".

    Errors: ConfigError listing the choices.
    """
    value, source = _first(given, launch, "mixed_precision", env)
    name = "no" if value is None else str(getattr(value, "value", value)).lower()
    if name not in PRECISIONS:
        raise ConfigError(
            f"mixed_precision={value!r} ({source}) is unknown",
            "forward passes can run in: " + ", ".join(PRECISIONS),
            'write mixed_precision="bf16", or leave it out for full precision',
        )
    return name


def accumulation_steps(
    given: Any, launch: Mapping[str, Any], env: Mapping[str, str] | None = None
) -> int:
    """Find how many micro-batches make one optimizer step; 2.0 and "2" are read as 2.

    Errors: ConfigError for anything that is not a whole number of at least 1.
    """
    value, source = _first(given, launch, "gradient_accumulation_steps", env)
    try:
        steps = 1 if value is None else int(value)
        whole = not isinstance(value, bool) and (value is None or steps == float(value))
    except (TypeError, ValueError):
        steps, whole = 0, False
    if not whole or steps < 1:
        raise ConfigError(
            f"gradient_accumulation_steps={value!r} ({source}) cannot be",
            "it is the number of micro-batches whose gradients make one optimizer step: 1, 2, ...",
            "write gradient_accumulation_steps=1 for no accumulation",
        )
    return steps


def wants_cpu(env: Mapping[str, str] | None = None) -> bool:
    """Tell whether the environment keeps this process on the CPU."""
    env = os.environ if env is None else env
    return flag_from_env("ACCELERATE_USE_CPU", env)


def flag_from_env(name: str, env: Mapping[str, str] | None = None) -> bool:
    """Read a yes or no from the environment; not there, or empty, is no.

    Errors: ConfigError for a word that is neither.
    """
    env = os.environ if env is None else env
    return bool(env.get(name)) and read_boolean(env[name], f"the environment variable {name}")


def log_level_from_env(env: Mapping[str, str] | None = None) -> str | None:
    """Read the level at which ``get_logger`` logs, if the environment names one."""
    env = os.environ if env is None else env
    return env.get("ACCELERATE_LOG_LEVEL") or None


def _first(
    given: Any, launch: Mapping[str, Any], name: str, env: Mapping[str, str] | None
) -> tuple[Any, str]:
    env = os.environ if env is None else env
    variable = f"ACCELERATE_{name.upper()}"
    if given is not None:
        return given, "the argument of Accelerator"
    if launch.get(name) is not None:
        return launch[name], "given at the launch"
    if variable in env:
        return env[variable], f"the environment variable {variable}"
    return None, "default"

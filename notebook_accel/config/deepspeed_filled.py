"""DeepSpeed's configuration for one model: what was asked for, and the rest filled in.

Accumulation, clipping between backward and step, schedules and batch sizes are the runtime's, as
under every strategy; DeepSpeed is told of one micro-batch a step that the runtime closes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from notebook_accel.config.contradictions import NO_EIGHT_BITS
from notebook_accel.config.deepspeed_file import AUTO
from notebook_accel.errors import ConfigError

if TYPE_CHECKING:
    from notebook_accel.config.deepspeed import DeepSpeed

# What the runtime does in DeepSpeed's place.
_OURS = ("train_batch_size", "gradient_accumulation_steps", "scheduler", "optimizer")
_QUIET = 2**31 - 1  # steps between two of DeepSpeed's own lines
# What DeepSpeed sizes by a model's width, in numbers.
_SIZES: dict[str, Callable[[int], float]] = {
    "reduce_bucket_size": lambda width: width * width,
    "stage3_prefetch_bucket_size": lambda width: 0.9 * width * width,
    "stage3_param_persistence_threshold": lambda width: 10 * width,
}


def filled(
    wish: DeepSpeed, precision: str, scaling: Mapping[str, float], width: int | None = None
) -> dict[str, Any]:
    """Give the whole configuration by which a model of this ``width`` is trained.

    Without a width DeepSpeed's own defaults size what it would size. ``scaling`` are arguments of
    ``torch.amp.GradScaler``, which count where nothing else is said.

    Errors: ConfigError where the number format is not the run's.
    """
    config: dict[str, Any] = copy.deepcopy(wish.config)
    for name in _OURS:
        config.pop(name, None)
    _set(config, "train_micro_batch_size_per_gpu", 1)
    config["gradient_accumulation_steps"] = 1
    config["managed_gradient_accumulation"] = False  # the runtime says when a window is over
    # Left out, DeepSpeed clips at 1: a run that nobody wanted clipped would be.
    config["gradient_clipping"] = wish.gradient_clipping or 0.0
    _set(config, "steps_per_print", _QUIET)
    # The person's own optimizer steps, whichever it is and wherever its states lie.
    _set(config, "zero_allow_untested_optimizer", True)
    _set(config, "zero_force_ds_cpu_optimizer", False)
    config["zero_optimization"] = _zero(wish, config.get("zero_optimization", {}), width)
    _numbers(config, precision, scaling)
    _refuse_open(config)
    return config


def _zero(wish: DeepSpeed, section: dict[str, Any], width: int | None) -> dict[str, Any]:
    zero = {**section, "stage": wish.zero_stage}
    for key in ("offload_optimizer", "offload_param"):
        place, path = getattr(wish, key), getattr(wish, f"{key}_path")
        if place in (None, "none"):
            zero.pop(key, None)
            continue
        zero[key] = {**zero.get(key, {}), "device": place, "nvme_path": path}
        if not path:
            del zero[key]["nvme_path"]
    _fill_sizes(zero, width)
    return zero


def _fill_sizes(zero: dict[str, Any], width: int | None) -> None:
    """Fill sizes where they are left open; without a width they are DeepSpeed's own."""
    for key, size in _SIZES.items():
        if zero.get(key) != AUTO:
            continue
        if width is None:
            del zero[key]
        else:
            zero[key] = max(1, int(size(width)))


def _numbers(config: dict[str, Any], precision: str, scaling: Mapping[str, float]) -> None:
    """Fill the number format in."""
    if precision == "fp8":
        raise ConfigError(
            "strategy=DeepSpeed(...) with mixed_precision='fp8'",
            NO_EIGHT_BITS,
            "write mixed_precision='bf16', or strategy=FSDP(), which gathers weights in 8 bits",
        )
    for name in ("bf16", "fp16"):
        section = config.setdefault(name, {})
        wanted = precision == name
        if section.get("enabled", AUTO) not in (AUTO, wanted):
            raise ConfigError(
                f"mixed_precision={precision!r}, but DeepSpeed's configuration has "
                f"{name}.enabled={section['enabled']!r}",
                "DeepSpeed keeps parameters in the number format that it is told",
                f'write {name}.enabled="auto", or mixed_precision="no" and "auto" in both sections',
            )
        section["enabled"] = wanted
    if precision == "fp16":
        fp16 = config["fp16"]
        _set(fp16, "auto_cast", False)
        _set(fp16, "initial_scale_power", round(math.log2(scaling.get("init_scale", 2.0**16))))
        _set(fp16, "loss_scale_window", int(scaling.get("growth_interval", 2000)))
        _set(fp16, "hysteresis", 1)
        _set(fp16, "loss_scale", 0)
    if precision != "no":  # small parts of a window must not vanish in a sum of 16 bits
        _set(config.setdefault("data_types", {}), "grad_accum_dtype", "fp32")


def _set(section: dict[str, Any], key: str, value: Any) -> None:
    if section.get(key, AUTO) == AUTO:
        section[key] = value


def _refuse_open(config: dict[str, Any]) -> None:
    if still_open := _open(config):
        raise ConfigError(
            f'DeepSpeed\'s configuration has {still_open[0]}="auto"',
            "nothing in the run says what it should be",
            f"write a value for {still_open[0]}, or take it out: DeepSpeed has a default",
        )


def _open(section: Mapping[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key, value in section.items():
        if isinstance(value, Mapping):
            found += _open(value, f"{prefix}{key}.")
        elif value == AUTO:
            found.append(prefix + key)
    return found

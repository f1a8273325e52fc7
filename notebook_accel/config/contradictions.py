"""Settings that cannot both be: found when a configuration is put together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from notebook_accel.errors import ConfigError

if TYPE_CHECKING:
    from notebook_accel.config.resolve import RunConfig

_AXES = ("dp_replicate", "dp_shard", "tp", "pp", "cp", "sp")


def refuse_contradictions(config: RunConfig) -> None:
    """Raise ConfigError for the first two settings of ``config`` that exclude each other."""
    for rule in _RULES:
        for one, other, why, fix in rule(config):
            raise ConfigError(_both(config, one, other), why, fix)


_Clash = tuple[str, str, str, str]


def _machines(config: RunConfig) -> Iterator[_Clash]:
    if config.node_rank >= config.num_nodes:
        yield (
            "node_rank",
            "num_nodes",
            "machines are numbered from 0",
            f"pass a node_rank from 0 to {config.num_nodes - 1}, or the real num_nodes",
        )


def _fsdp(config: RunConfig) -> Iterator[_Clash]:
    if config.strategy != "fsdp" or config.fsdp_version != 2:
        return
    if config.fsdp_state_dict_type == "LOCAL_STATE_DICT":
        yield (
            "fsdp_version",
            "fsdp_state_dict_type",
            "FSDP 2 keeps its pieces as DTensors, which are saved whole or in pieces of them",
            "write fsdp_state_dict_type: SHARDED_STATE_DICT",
        )
    if config.fsdp_forward_prefetch:
        yield (
            "fsdp_version",
            "fsdp_forward_prefetch",
            "only FSDP 1 prefetches that way",
            "leave fsdp_forward_prefetch out",
        )


def _deepspeed(config: RunConfig) -> Iterator[_Clash]:
    if config.strategy != "deepspeed":
        return
    if config.deepspeed_config_file:
        own = ("zero_stage", "gradient_clipping", "offload_optimizer_device",
               "offload_param_device", "zero3_save_16bit_model",
               "offload_optimizer_nvme_path", "offload_param_nvme_path")  # fmt: skip
        for name in own:
            if name in config.given() and config.origin(name).kind != "environment":
                yield (
                    "deepspeed_config_file",
                    name,
                    "DeepSpeed's own file says all of it",
                    f"write {name} into that file, and leave it out here",
                )
    elif config.offload_param_device in ("cpu", "nvme") and config.zero_stage != 3:
        yield (
            "offload_param_device",
            "zero_stage",
            "parameters lie in pieces, and can lie elsewhere, in stage 3 only",
            "write zero_stage: 3, or offload_param_device: none",
        )


def _axes(config: RunConfig) -> Iterator[_Clash]:
    size = {axis: config[f"parallelism_config_{axis}_size"] for axis in _AXES}
    if size["cp"] > 1 and size["sp"] > 1:
        yield (
            "parallelism_config_cp_size",
            "parallelism_config_sp_size",
            "both cut the same sequences",
            "leave one of them at 1",
        )
    product, total = math.prod(size.values()), config.num_processes
    if config.use_parallelism_config and total and product > 1 and total != product:
        largest = max(size, key=lambda axis: size[axis])
        yield (
            "num_processes",
            f"parallelism_config_{largest}_size",
            f"the axes make {product} ranks: "
            + " x ".join(f"{axis} {n}" for axis, n in size.items() if n > 1),
            f"write num_processes: {product}, or other sizes",
        )


_RULES: tuple[Callable[[RunConfig], Iterator[_Clash]], ...] = (_machines, _fsdp, _deepspeed, _axes)


def _both(config: RunConfig, one: str, other: str) -> str:
    """Write two settings that stand in one file with their lines, others with where they stand."""
    here, there = config.origin(one), config.origin(other)
    if here.kind == there.kind == "file" and here.path == there.path:
        return (
            f"{here.path}, line {here.line}: {one}={config[one]!r}, but line {there.line} says "
            f"{other}={config[other]!r}"
        )
    return f"{_shown(config, one)}, but {_shown(config, other)}"


def _shown(config: RunConfig, name: str) -> str:
    """Write a setting, and where it comes from unless it was an argument."""
    origin = config.origin(name)
    if origin.kind in ("argument", "default"):
        return origin.write(name, config[name])
    return f"{name}={config[name]!r} ({origin})"

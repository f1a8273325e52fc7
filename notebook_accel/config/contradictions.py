"""Settings that cannot both be: found when a configuration is put together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from notebook_accel.config.degrees import excluded, places_left
from notebook_accel.errors import ConfigError

if TYPE_CHECKING:
    from notebook_accel.config.resolve import RunConfig

# Why there is no fp8 under DeepSpeed, and in a pipeline.
NO_EIGHT_BITS = (
    "DeepSpeed keeps parameters and casts inputs in one number format, and has none of 8 bits"
)
TRACED = "a stage is traced into operations, and it is layers that compute in 8 bits"
_AXES = ("dp_replicate", "dp_shard", "tp", "pp", "cp", "sp")
# Section -> the settings that multiply to a number of ranks.
DEGREES = {
    "parallelism": tuple(f"parallelism_config_{axis}_size" for axis in _AXES),
    "megatron": tuple(
        f"megatron_lm_{name}" for name in ("tp_degree", "pp_degree", "context_parallel_size")
    ),
}


def refuse_contradictions(config: RunConfig) -> None:
    """Raise ConfigError for the first two settings of ``config`` that exclude each other."""
    _refuse(config, _RULES)


def refuse_unfit(config: RunConfig) -> None:
    """Raise ConfigError for settings that can be stored side by side, and not be run.

    It is for a run whose strategy the settings say, and nothing else does.
    """
    _refuse(config, (_eight_bits, _unfit_deepspeed, _two_layouts))


def _refuse(config: RunConfig, rules: Iterable[Callable[[RunConfig], Iterator[_Clash]]]) -> None:
    for rule in rules:
        for one, other, why, fix in rule(config):
            raise ConfigError(_both(config, one, other), why, fix)


_Clash = tuple[str, str, str, str]


def _machines(config: RunConfig) -> Iterator[_Clash]:
    most = config.num_nodes
    if config.node_rank < most:
        return
    number = config.call("node_rank", "num_nodes")
    more = config.write("num_nodes", config.node_rank + 1, "node_rank")
    yield (
        "node_rank",
        "num_nodes",
        f"machines are numbered from 0, so of {most} the last is {most - 1}",
        f"write {more} if so many take part, or leave {number} out"
        if most == 1
        else f"write a {number} from 0 to {most - 1}, or {more} if so many take part",
    )


def _fsdp(config: RunConfig) -> Iterator[_Clash]:
    if config.strategy != "fsdp" or config.fsdp_version != 2:
        return
    if config.fsdp_state_dict_type == "LOCAL_STATE_DICT":
        yield (
            "fsdp_version",
            "fsdp_state_dict_type",
            "FSDP 2 keeps its pieces as DTensors, which are saved whole or in pieces of them",
            f"write {config.write('fsdp_state_dict_type', 'SHARDED_STATE_DICT')}",
        )
    if config.fsdp_forward_prefetch:
        yield (
            "fsdp_version",
            "fsdp_forward_prefetch",
            "only FSDP 1 prefetches that way",
            f"leave {config.call('fsdp_forward_prefetch')} out",
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
                    f"write {name} into that file, and leave {config.call(name)} out",
                )
    elif config.offload_param_device in ("cpu", "nvme") and config.zero_stage != 3:
        yield (
            "offload_param_device",
            "zero_stage",
            "parameters lie in pieces, and can lie elsewhere, in stage 3 only",
            f"write {config.write('zero_stage', 3, 'offload_param_device')}, or "
            f"{config.write('offload_param_device', 'none')}",
        )


def _axes(config: RunConfig) -> Iterator[_Clash]:
    size = {axis: config[f"parallelism_config_{axis}_size"] for axis in _AXES}
    if (clash := excluded(size)) is not None:
        one, other, why = clash
        names = [f"parallelism_config_{axis}_size" for axis in (one, other)]
        yield names[0], names[1], why, "leave one of them at 1"
    total = config.num_processes
    if config.use_parallelism_config and total and places_left(total, size.values()) != 1:
        yield _uneven(config, total, {axis: n for axis, n in size.items() if n > 1})


def _uneven(config: RunConfig, total: int, size: dict[str, int]) -> _Clash:
    if not size:
        copies = "parallelism_config_dp_replicate_size"
        return (
            "num_processes",
            "use_parallelism_config",
            "the sizes of the axes multiply to the number of ranks, and all of them are 1",
            f"write {config.write(copies, total, 'use_parallelism_config')} for a whole copy on "
            f"each, or leave {config.call('use_parallelism_config')} out",
        )
    product = math.prod(size.values())
    largest = f"parallelism_config_{max(size, key=lambda axis: size[axis])}_size"
    return (
        "num_processes",
        largest,
        f"the axes make {product} ranks: " + " x ".join(f"{axis} {n}" for axis, n in size.items()),
        f"write {config.write('num_processes', product, largest)}, or other sizes",
    )


def _megatron(config: RunConfig) -> Iterator[_Clash]:
    total, names = config.num_processes, DEGREES["megatron"]
    degrees = {name: config[name] or 1 for name in names}
    if config.strategy != "megatron_lm":
        return
    axes = dict(zip(("tp", "pp", "cp"), names, strict=True))
    if (clash := excluded({axis: degrees[name] for axis, name in axes.items()})) is not None:
        one, other, why = clash
        yield axes[one], axes[other], why, "leave one of them at 1"
    if total and places_left(total, degrees.values()) is None:
        product = math.prod(degrees.values())
        yield (
            "num_processes",
            max(degrees, key=lambda name: degrees[name]),
            f"each copy of the model takes {product} ranks, and copies must fill all of them",
            f"write {config.write('num_processes', -(-total // product) * product)}, "
            "or other degrees",
        )


def _eight_bits(config: RunConfig) -> Iterator[_Clash]:
    if config.mixed_precision != "fp8":
        return
    bf16 = f"write {config.write('mixed_precision', 'bf16')}"
    if config.strategy == "deepspeed" and config.zero_stage != 0:
        fsdp = config.write("strategy", "fsdp")
        yield "strategy", "mixed_precision", NO_EIGHT_BITS, f"{bf16}, or {fsdp}"
    for name, counts in (
        ("parallelism_config_pp_size", config.use_parallelism_config),
        ("megatron_lm_pp_degree", config.strategy == "megatron_lm"),
    ):
        if counts and (config[name] or 1) > 1:
            yield name, "mixed_precision", TRACED, f"{bf16}, or leave {config.call(name)} out"


def _unfit_deepspeed(config: RunConfig) -> Iterator[_Clash]:
    if config.strategy != "deepspeed" or config.zero_stage == 0:
        return
    for what in ("optimizer", "param"):
        device, folder = f"offload_{what}_device", f"offload_{what}_nvme_path"
        if config[device] == "nvme" and not config[folder] and not config.deepspeed_config_file:
            yield (
                device,
                folder,
                "the folder is where the files of each rank are",
                f"write {config.write(folder, '/local/disk', device)}, or "
                f"{config.write(device, 'cpu')}",
            )
    for axis in ("tp", "pp"):
        name = f"parallelism_config_{axis}_size"
        if config.use_parallelism_config and config[name] > 1:
            yield (
                "strategy",
                name,
                "DeepSpeed's ZeRO shards models whose layers are whole",
                f"leave {config.call(name)} out, or write {config.write('strategy', 'fsdp')}",
            )


def _two_layouts(config: RunConfig) -> Iterator[_Clash]:
    if config.use_parallelism_config and config.strategy == "megatron_lm":
        yield (
            "use_parallelism_config",
            "strategy",
            "both say how models lie across ranks, and nobody could say which of them counts",
            f"leave {config.call('strategy')} out, or the sizes of the axes",
        )


_RULES: tuple[Callable[[RunConfig], Iterator[_Clash]], ...] = (
    *(_machines, _fsdp, _deepspeed, _axes, _megatron),
)


def _both(config: RunConfig, one: str, other: str) -> str:
    """Write two settings that stand in one file with their lines, others with where they stand."""
    here, there = config.origin(one), config.origin(other)
    if here.kind == there.kind == "file" and here.path == there.path:
        return (
            f"{here.path}, line {here.line}: {one}={config[one]!r}, but line {there.line} says "
            f"{other}={config[other]!r}"
        )
    return f"{_shown(config, one, other)}, but {_shown(config, other, one)}"


def _shown(config: RunConfig, name: str, beside: str) -> str:
    """Write a setting as it stands where it comes from, one that nobody wrote like the other."""
    origin = config.origin(name)
    if origin.kind in ("file", "environment"):
        return f"{name}={config[name]!r} ({origin})"
    if origin.kind == "default" and config.origin(beside).kind == "option":
        return f"{config.call(name, beside)} is {config[name]}"
    return origin.write(name, config[name])

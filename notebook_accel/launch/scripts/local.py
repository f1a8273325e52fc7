"""What the ranks on this machine compute on. Pure: the devices were looked up before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from notebook_accel.config.resolve import RunConfig
from notebook_accel.config.words import counted
from notebook_accel.errors import ConfigError
from notebook_accel.launch.plan import device_words

if TYPE_CHECKING:
    from notebook_accel.launch.devices import Device

_ORDER = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Local:
    """The ranks of this machine: how many, on what, and which variables make it so."""

    num_ranks: int
    kind: str
    words: str
    env: Mapping[str, str]
    notes: tuple[str, ...] = ()


def local(
    config: RunConfig, devices: Sequence[Device], env: Mapping[str, str], wanted: int | None
) -> Local:
    """Place the ranks of this machine; ``wanted`` is how many were asked for, if somebody did.

    Errors: ConfigError for GPUs that are not there, or too few of them.
    """
    device: Any = config["device"]
    numbers = [device] if isinstance(device, int) else device
    numbers = numbers if isinstance(numbers, (list, tuple)) else ()
    gpus = [one for one in devices if one.kind == "cuda"]
    chosen: list[Device] = []
    notes, visible = [], {}
    if (numbers or device in ("cuda", "gpu")) and not gpus:
        notes.append("no GPU here: the ranks run on the CPU (--cpu asks for that)")
        visible["ACCELERATE_USE_CPU"] = "true"
        wanted = wanted or len(numbers) or None
    elif numbers:
        chosen = _picked(numbers, gpus)
        visible[_ORDER] = ",".join(_entry(index, env) for index in numbers)
    elif gpus and device not in ("cpu", "mps"):
        chosen = gpus
    elif device != "cpu" and (wanted or 1) == 1:
        chosen = [one for one in devices if one.kind == "mps"]
    if device == "mps" and not chosen:
        raise _no_mps(wanted)
    num_ranks = wanted or len(chosen) or 1
    if chosen and num_ranks > len(chosen):
        if device != "auto-or-cpu":
            raise _too_many(num_ranks, chosen, len(gpus))
        gpus_here = counted(len(chosen), "GPU")
        notes.append(f"{gpus_here} for {num_ranks} ranks: they run on the CPU")
        visible["ACCELERATE_USE_CPU"] = "true"
        chosen = []
    used = chosen[:num_ranks]
    return Local(
        num_ranks,
        used[0].kind if used else "cpu",
        device_words(used, num_ranks),
        visible,
        tuple(notes),
    )


def _picked(numbers: Sequence[int], gpus: Sequence[Device]) -> list[Device]:
    by_number = {one.index: one for one in gpus}
    bad = [number for number in numbers if number not in by_number]
    twice = [number for number, count in Counter(numbers).items() if count > 1]
    if bad or twice:
        there = ", ".join(f"{number} ({one.name})" for number, one in by_number.items())
        raise ConfigError(
            f"--gpu_ids {','.join(map(str, numbers))}: "
            + (f"there is no GPU {bad[0]}" if bad else f"GPU {twice[0]} is named twice"),
            f"the GPUs here are {there}; numbers count what {_ORDER} leaves",
            f"write --gpu_ids {','.join(map(str, by_number))}, or fewer of them",
        )
    return [by_number[number] for number in numbers]


def _entry(number: int, env: Mapping[str, str]) -> str:
    """Give what stands for a GPU in CUDA_VISIBLE_DEVICES: as it was named there before, if so."""
    entries = [entry.strip() for entry in env.get(_ORDER, "").split(",") if entry.strip()]
    return entries[number] if number < len(entries) else str(number)


def _too_many(num_ranks: int, chosen: Sequence[Device], num_gpus: int) -> ConfigError:
    noun = {"cuda": "GPU", "mps": "MPS device"}.get(chosen[0].kind, "device")
    here = counted(len(chosen), noun)
    more = f" of the {num_gpus} here" if len(chosen) < num_gpus else ""
    return ConfigError(
        f"{num_ranks} processes on this machine, but {here}{more} for them",
        "each rank needs a device of its own",
        f"write --num_processes {len(chosen)}"
        + (", or name more GPUs in --gpu_ids" if more else "")
        + "; or --cpu to train on the CPU",
    )


def _no_mps(wanted: int | None) -> ConfigError:
    return ConfigError(
        f"--device mps with {wanted or 1} processes cannot be here",
        "MPS exists on Macs with Apple silicon, and one process uses it",
        "leave --device out, or write --cpu",
    )

"""From what was asked and what is there to who runs where. Pure: nothing is looked up here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from notebook_accel.config.placement import FAKE, Placement
from notebook_accel.config.schema import check_node
from notebook_accel.config.words import counted
from notebook_accel.errors import ConfigError
from notebook_accel.launch.devices import Device

_COMM = {"cpu": "gloo", "cuda": "nccl", "mps": None}
_WORDS = {"cpu": "CPU", "cuda": "CUDA", "mps": "MPS"}


@dataclass(frozen=True)
class LaunchPlan:
    """Who runs where: one placement per local rank, and what the person is told about it.

    ``env`` is what workers get on top of the kernel's environment; ``num_threads`` is per worker.
    """

    placements: tuple[Placement, ...]
    num_threads: int
    env: dict[str, str] = field(default_factory=dict)
    device_words: str = ""
    notes: tuple[str, ...] = ()

    @property
    def on_one_machine(self) -> bool:
        """Whether these are all ranks of the run."""
        return self.placements[0].size == len(self.placements)


def plan(
    num_processes: int | None,
    device: str | int | Sequence[int] | None,
    devices: Sequence[Device],
    num_cores: int,
    node_rank: int = 0,
    num_nodes: int = 1,
) -> LaunchPlan:
    """Place ``num_processes`` ranks on ``devices``, or say why that cannot be.

    ``device``: None or "auto", "auto-or-cpu", "cpu", "cuda" or "gpu", "mps", the number of one GPU
    or a list of numbers, which picks and orders. Values were checked by ``LaunchSettings``.

    Errors: ConfigError with the ways out.
    """
    check_node(node_rank, num_nodes)
    env: dict[str, str] = {}
    if device is None or isinstance(device, str):
        chosen = _of_kind(device, devices)
    else:
        chosen = _picked([device] if isinstance(device, int) else device, devices)
        env["CUDA_VISIBLE_DEVICES"] = ",".join(one.uuid or str(one.index) for one in chosen)
        chosen = [replace(one, index=index) for index, one in enumerate(chosen)]
    notes: list[str] = []
    if num_processes is None:
        num_ranks = len(chosen) or 1
        if not chosen and device != "cpu":
            notes.append("no accelerator here: 1 process on the CPU")
    else:
        num_ranks = num_processes
    if len(chosen) < num_ranks and (chosen or device == "auto-or-cpu"):
        if device != "auto-or-cpu":
            raise _too_many(num_ranks, chosen, devices)
        if num_processes is not None:
            verb = "runs" if num_ranks == 1 else "run"
            notes.append(f"{_have(chosen)}: {counted(num_ranks, 'rank')} {verb} on the CPU")
        chosen = []
    used = chosen[:num_ranks]
    notes += [] if used else crowd(num_ranks, num_cores)
    return LaunchPlan(
        _placements(used, num_ranks, node_rank, num_nodes),
        max(1, num_cores // num_ranks),
        env,
        device_words(used, num_ranks),
        tuple(notes),
    )


def is_fake(device: object) -> bool:
    """Tell whether ``device`` asks for a layout that is only played."""
    return isinstance(device, str) and device.partition(":")[0] == FAKE


def refuse_fake(device: object) -> None:
    """Refuse what has one process play a rank, where real ranks are started.

    Errors: ConfigError.
    """
    if is_fake(device):
        raise ConfigError(
            f"device={device!r} is for notebook_launcher",
            "it has one process play a rank of a layout; a launch of scripts has no such way",
            f'call notebook_launcher(main, num_processes=64, device="{device}")',
        )


def _of_kind(device: str | None, devices: Sequence[Device]) -> list[Device]:
    """Return the devices a kind stands for; "cpu" and an empty machine stand for none."""
    if device == "cpu":
        return []
    refuse_fake(device)
    kind = {"cuda": "cuda", "gpu": "cuda", "mps": "mps"}.get(device or "")
    if kind is not None:
        found = [one for one in devices if one.kind == kind]
        if not found:
            raise ConfigError(
                f"device={device!r}, but there is no {_WORDS[kind]} device here",
                "no driver shows one, or CUDA_VISIBLE_DEVICES hides it"
                if kind == "cuda"
                else "MPS exists on Macs with Apple silicon only",
                'pass device="cpu", or device="auto" to take what is there',
            )
        return found
    cuda = [one for one in devices if one.kind == "cuda"]
    tpus = [one for one in devices if one.kind == "tpu"]
    if tpus and not cuda:
        raise ConfigError(
            f"this is a TPU host: {tpus[0].name}",
            "training on TPUs needs the XLA engine, which this version does not have yet",
            'pass device="cpu" to train on the CPU of this machine',
        )
    return cuda or [one for one in devices if one.kind == "mps"]


def _picked(indices: Sequence[int], devices: Sequence[Device]) -> list[Device]:
    cuda = {one.index: one for one in devices if one.kind == "cuda"}
    there = ", ".join(f"{index} ({one.name})" for index, one in cuda.items()) or "none"
    asked = list(indices)
    bad = [index for index in asked if index not in cuda]
    twice = [index for index, count in Counter(asked).items() if count > 1]
    if bad or twice:
        wrong = (
            f"there is no GPU {bad[0]}" if bad else f"GPU {twice[0]} is asked for more than once"
        )
        raise ConfigError(
            f"device={asked[0] if len(asked) == 1 else asked}: {wrong}",
            f"the GPUs here are: {there}; numbers count what CUDA_VISIBLE_DEVICES leaves",
            f"pick among {list(cuda)}" if cuda else 'pass device="cpu"',
        )
    return [cuda[index] for index in asked]


def _too_many(num_ranks: int, chosen: Sequence[Device], devices: Sequence[Device]) -> ConfigError:
    here = [one for one in devices if one.kind == chosen[0].kind]
    more = f", or pick more of the {len(here)}" if len(here) > len(chosen) else ""
    return ConfigError(
        f"num_processes={num_ranks}, but {_have(chosen)}",
        "each rank needs an accelerator of its own",
        f'pass num_processes={len(chosen)}{more}; or train on the CPU with device="cpu" '
        '(device="auto-or-cpu" does so only where accelerators are missing)',
    )


def _have(chosen: Sequence[Device]) -> str:
    if not chosen:
        return "no accelerator here"
    return f"{counted(len(chosen), f'{_WORDS[chosen[0].kind]} device')} to use"


def _placements(
    used: Sequence[Device], num_ranks: int, node_rank: int, num_nodes: int
) -> tuple[Placement, ...]:
    kind = used[0].kind if used else "cpu"
    size = num_ranks * num_nodes
    return tuple(
        Placement(
            rank=node_rank * num_ranks + local_rank,
            size=size,
            local_rank=local_rank,
            local_size=num_ranks,
            device=f"cuda:{used[local_rank].index}" if kind == "cuda" else kind,
            comm=_COMM[kind] if size > 1 else None,
        )
        for local_rank in range(num_ranks)
    )


def crowd(num_ranks: int, num_cores: int) -> list[str]:
    """Note more ranks on the CPU than it has cores, if that is so."""
    if num_ranks <= num_cores:
        return []
    return [f"{num_ranks} ranks share {counted(num_cores, 'core')}: they take turns"]


def device_words(used: Sequence[Device], num_ranks: int) -> str:
    """Say it as a person would: "2 x Tesla T4", "1 CPU process"."""
    if not used:
        return counted(num_ranks, "CPU process", "CPU processes")
    names = Counter(one.name for one in used)
    return " + ".join(f"{count} x {name}" if count > 1 else name for name, count in names.items())

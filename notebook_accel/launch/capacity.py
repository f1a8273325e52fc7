"""Devices as a person names them: what this machine has, memory such as "80GB", cards, numbers.

Nothing is opened: this machine's devices are listed by the driver.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from notebook_accel.config.schema import check_choice
from notebook_accel.config.words import counted
from notebook_accel.errors import ConfigError
from notebook_accel.launch.devices import Device
from notebook_accel.launch.machine import Machine

# Memory as torch sees it, in GiB, and compute capability. Source: NVIDIA's data sheets and the
# driver's totals, which are a little less than what is printed on the box.
CARDS: Mapping[str, tuple[float, tuple[int, int]]] = {
    "T4": (14.6, (7, 5)), "P100": (15.9, (6, 0)), "V100": (15.8, (7, 0)), "A10": (22.1, (8, 6)),
    "A10G": (22.1, (8, 6)), "L4": (22.1, (8, 9)), "L40S": (44.4, (8, 9)), "A100": (39.4, (8, 0)),
    "A6000": (47.4, (8, 6)), "H100": (79.1, (9, 0)), "H200": (139.8, (9, 0)),
    "B200": (178.4, (10, 0)), "RTX3090": (23.6, (8, 6)), "RTX4090": (23.6, (8, 9)),
    "RTX5090": (31.3, (12, 0)),
}  # fmt: skip
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "G": 10**9, "M": 10**6,
}  # fmt: skip
_AMOUNT = re.compile(r"([\d.]+)\s*([KMGT]?I?B|[MG])", re.IGNORECASE)
_MOST = 100_000  # ranks; a larger number counts bytes
_FIX = 'write devices="T4 x2", "80GB x8", 8, ["24GB", "24GB"], or {0: "14GB", 1: "14GB"}'


@dataclass(frozen=True)
class Capacity:
    """The devices to train on; ``shares_host`` tells that ranks share one memory, the CPU's.

    ``host_bytes`` is what is free of the memory beside these devices, 0 where nobody knows.
    """

    devices: tuple[Device, ...]
    shares_host: bool = False
    host_bytes: int = 0

    @property
    def bytes_each(self) -> int:
        """What the smallest can hold, as far as it is free; 0 where nobody knows."""
        least = min(one.free_bytes or one.total_bytes for one in self.devices)
        return least // len(self.devices) if self.shares_host else least

    @property
    def words(self) -> str:
        """Name them: "2 x T4", "8 devices"."""
        names = list(dict.fromkeys(one.name for one in self.devices))
        if self.shares_host:
            ranks = len(self.devices)
            return f"{counted(ranks, 'rank')} on the CPU"
        name = " and ".join(names)
        return name if len(self.devices) == 1 else f"{len(self.devices)} x {name}"


def capacity(devices: Any, machine: Callable[[], Machine]) -> Capacity:
    """Read what a person wrote as ``devices``; None is all of ``machine``.

    A number is that many of the devices here, text is memory ("80GB"), a card ("T4"), or several
    ("T4 x2", "4 x 80GB"), a list has one entry each (numbers of GPUs as a launch takes them, or
    text), a dict has memory by device, or numbers of cards.

    Errors: ConfigError for what names no device.
    """
    if devices is None or _is_count(devices):
        return _here(machine(), devices)
    if isinstance(devices, str):
        if devices.lower() in ("cpu", "auto", "cuda", "gpu"):
            return _here(machine(), None, devices.lower())
        found = _named(devices)
    elif isinstance(devices, Mapping):
        found = [one for name, value in devices.items() for one in _entry(name, value)]
    elif isinstance(devices, (list, tuple)):
        if devices and all(_is_count(one, 0) for one in devices):
            here = machine()
            return Capacity(_picked(devices, here), host_bytes=here.free_bytes)
        found = [made for one in devices for made in _one(one)]
    else:
        found = _one(devices)
    if not found:
        raise ConfigError(f"devices={devices!r} names no device", "it is empty", _FIX)
    return Capacity(tuple(replace(one, index=index) for index, one in enumerate(found)))


def _here(machine: Machine, count: int | None, word: str = "auto") -> Capacity:
    there = [] if word == "cpu" else [*machine.of_kind("cuda")]
    if not there and word in ("cuda", "gpu"):
        raise ConfigError(
            f"devices={word!r}, but there is no GPU here",
            "no driver shows one, or CUDA_VISIBLE_DEVICES hides it",
            _FIX,
        )
    if not there:
        cpu = Device("cpu", 0, "the CPU", "", machine.total_bytes, machine.free_bytes)
        return Capacity((cpu,) * (count or 1), shares_host=True)
    if count is None or count <= len(there):
        return Capacity(tuple(there[:count]), host_bytes=machine.free_bytes)
    like = there[0]  # more than there are: as if there were more of these
    return Capacity(tuple(replace(like, index=index, uuid="") for index in range(count)))


def _picked(numbers: Any, machine: Machine) -> tuple[Device, ...]:
    gpus = {one.index: one for one in machine.of_kind("cuda")}
    missing = [number for number in numbers if number not in gpus]
    if missing:
        raise ConfigError(
            f"devices={list(numbers)}: there is no GPU {missing[0]} here",
            f"the GPUs here are: {', '.join(map(str, gpus)) or 'none'}",
            _FIX,
        )
    return tuple(gpus[number] for number in numbers)


def _entry(name: Any, value: Any) -> list[Device]:
    """Read one entry of a dict: a card and how many, or a device and its memory."""
    if isinstance(name, str) and _card(name) is not None and _is_count(value):
        return _one(name) * int(value)
    if str(name).lower() == "cpu":  # as others write what may be offloaded
        return []
    made = _one(value)
    return [replace(one, name=one.name or str(name)) for one in made]


def _one(value: Any) -> list[Device]:
    if isinstance(value, Device):
        return [value]
    if isinstance(value, str):
        return _named(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= _MOST:
        return [_of_memory(int(value), "")]
    raise ConfigError(
        f"{value!r:.60} names no device",
        "a device is named by its memory, or by a card",
        _FIX,
    )


def _named(text: str) -> list[Device]:
    """Read "T4", "T4 x2", "2 x T4", "80GB", "8x80GB", "A100-80GB"."""
    said = text.strip()
    count = 1
    before, after = (
        re.match(r"(\d+)\s*[xX*]\s*(?=\S{2})", said),
        re.search(r"\s*[xX*]\s*(\d+)$", said),
    )
    if before:
        count, said = int(before[1]), said[before.end() :]
    elif after and _card(said) is None:  # of "RTX 4090" the x does not multiply
        count, said = int(after[1]), said[: after.start()]
    memory = _AMOUNT.fullmatch(said) or re.search(_AMOUNT.pattern + "$", said, re.IGNORECASE)
    card = _card(said if memory is None else said[: memory.start()])
    if memory is None and card is None:
        check_choice("devices", said, tuple(CARDS))
    if card is None and memory is not None and said[: memory.start()].strip(" -_"):
        card = (said[: memory.start()].strip(" -_"), 0.0, None)
    name, size, capability = card or ("", 0.0, None)
    num_bytes = int(size * 2**30)
    if memory is not None:
        try:
            num_bytes = int(float(memory[1]) * _UNITS[memory[2].upper()])
        except ValueError:
            num_bytes = 0
    if count < 1 or num_bytes < 1:
        raise ConfigError(f"devices={text!r} has no memory", "it is a number of bytes each", _FIX)
    made = Device("cuda", 0, name or f"{said}", "", num_bytes, num_bytes, capability)
    return [made] * count


def _of_memory(num_bytes: int, name: str) -> Device:
    return Device("cuda", 0, name or f"{num_bytes / 1e9:.3g} GB", "", num_bytes, num_bytes)


def _card(text: str) -> tuple[str, float, tuple[int, int] | None] | None:
    plain = re.sub(r"[^A-Z0-9]", "", text.upper())
    for prefix in ("NVIDIA", "TESLA", "GEFORCE", "QUADRO"):
        plain = plain.removeprefix(prefix)
    plain = plain if plain in CARDS else f"RTX{plain}"
    return None if plain not in CARDS else (plain, *CARDS[plain])


def _is_count(value: Any, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < _MOST

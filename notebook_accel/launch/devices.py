"""What this machine has, found out without opening it: accelerators and usable cores.

A kernel that opened a GPU cannot fork workers that use it, so counting goes through NVML (which
makes no CUDA context) or through a child process. The choosing is done by pure functions over
plain data; the reading is kept apart from it.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

CHILD_TIMEOUT_S = 60.0
_ORDER = "CUDA_DEVICE_ORDER"
_VISIBILITY = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_TPU_NAMES = ("TPU_NAME", "TPU_WORKER_ID", "TPU_ACCELERATOR_TYPE", "COLAB_TPU_ADDR", "ISTPUVM")


@dataclass(frozen=True)
class Device:
    """One accelerator that workers can use; ``index`` is its number for torch ("cuda:<index>").

    ``kind`` is "cuda", "mps" or "tpu". Unknown sizes are 0 and an unknown ``uuid`` is empty;
    ``capability`` is CUDA's compute capability, (7, 5) for a T4, or None where nobody knows.
    """

    kind: str
    index: int
    name: str
    uuid: str = ""
    total_bytes: int = 0
    free_bytes: int = 0
    capability: tuple[int, int] | None = None


@dataclass(frozen=True)
class Chip:
    """One GPU as NVML lists it (PCI bus order), with the MIG slices it is cut into, if it is."""

    uuid: str
    name: str
    total_bytes: int = 0
    free_bytes: int = 0
    slices: tuple[Chip, ...] = ()
    capability: tuple[int, int] | None = None


def accelerators(env: Mapping[str, str] | None = None) -> list[Device]:
    """List the accelerators in the order in which torch will number them, without opening any.

    ``env`` is the environment the workers will have (default: this process's);
    CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER are obeyed. No driver means an empty list.
    """
    env = os.environ if env is None else env
    chips = read_nvml()
    if chips:
        from importlib.metadata import version

        if version("torch").endswith("+cpu"):
            warnings.warn(
                f"{len(chips)} GPUs are here, but torch {version('torch')} cannot use them",
                stacklevel=2,
            )
            chips = []
    found = [(chip.uuid, chip.name, chip.total_bytes) for chip in visible(chips, env)]
    if needs_cuda_order(chips, env) or (not chips and Path("/dev/kfd").exists()):
        settings = tuple((name, env.get(name)) for name in (*_VISIBILITY, _ORDER))
        found = _ask_torch(settings) or found
    told = {part.uuid: part for chip in chips for part in (chip, *chip.slices)}
    unknown = Chip("", "")
    devices = [
        Device(
            "cuda",
            index,
            name,
            uuid,
            total_bytes,
            told[uuid].free_bytes if uuid in told else total_bytes,
            told.get(uuid, unknown).capability,
        )
        for index, (uuid, name, total_bytes) in enumerate(found)
    ]
    if sys.platform == "darwin" and platform.machine() == "arm64":
        devices.append(Device("mps", 0, "Apple GPU"))
    sign = tpu_sign(env, [path.name for path in Path("/dev").glob("accel[0-9]*")])
    if sign:
        devices.append(Device("tpu", 0, f"TPU ({sign})"))
    return devices


def visible(chips: Sequence[Chip], env: Mapping[str, str]) -> list[Chip]:
    """Pick from ``chips`` what CUDA_VISIBLE_DEVICES leaves, in CUDA's numbering.

    Source: CUDA C++ Programming Guide, environment variables; MIG User Guide, device enumeration.
    """
    wanted = env.get("CUDA_VISIBLE_DEVICES")
    picked = list(chips) if wanted is None else _pick(chips, wanted)
    usable = [chip.slices[0] if chip.slices else chip for chip in picked]
    # CUDA takes one MIG slice per process, and no whole GPU beside it.
    cut = [chip for chip in usable if chip.uuid.startswith("MIG-")]
    return cut[:1] or usable


def _pick(chips: Sequence[Chip], wanted: str) -> list[Chip]:
    """Resolve the entries of CUDA_VISIBLE_DEVICES; the first that names nothing ends the list."""
    entries = [entry.strip() for entry in wanted.split(",")]
    by_name = entries[0].startswith(("GPU-", "MIG-"))
    picked: list[Chip] = []
    for entry in entries:
        chip = _by_name(chips, entry) if by_name else _by_index(chips, entry)
        if chip is None:
            break
        if chip in picked:  # CUDA then reports no device at all
            return []
        picked.append(chip)
    return picked


def _by_index(chips: Sequence[Chip], entry: str) -> Chip | None:
    """Read leading digits only, as CUDA does ("1gpu" is 1)."""
    digits = entry[: len(entry) - len(entry.lstrip("0123456789"))]
    return chips[int(digits)] if digits and int(digits) < len(chips) else None


def _by_name(chips: Sequence[Chip], entry: str) -> Chip | None:
    if not entry.startswith(("GPU-", "MIG-")):
        return None
    parts = [part for chip in chips for part in (chip, *chip.slices)]
    matches = [part for part in parts if part.uuid.lower().startswith(entry.lower())]
    return matches[0] if len(matches) == 1 else None


def needs_cuda_order(chips: Sequence[Chip], env: Mapping[str, str]) -> bool:
    """Tell whether only CUDA knows the numbering: unlike GPUs, sorted by speed, taken by number."""
    if env.get(_ORDER) == "PCI_BUS_ID" or len({chip.name for chip in chips}) < 2:
        return False
    return not env.get("CUDA_VISIBLE_DEVICES", "0").strip().startswith(("GPU-", "MIG-"))


def tpu_sign(env: Mapping[str, str], device_files: Sequence[str]) -> str:
    """Name what shows that this is a TPU host, or return an empty string."""
    if env.get("PJRT_DEVICE", "").upper() == "TPU":
        return "PJRT_DEVICE=TPU"
    named = [name for name in _TPU_NAMES if env.get(name)]
    if named:
        return f"{named[0]} is set"
    return f"/dev/{sorted(device_files)[0]}" if device_files else ""


def usable_cores() -> int:
    """Count the cores this process may use: its CPU affinity, cut by the cgroup's quota."""
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    try:
        groups = Path("/proc/self/cgroup").read_text()
    except OSError:  # not Linux
        return allowed
    quota = cgroup_cores(Path("/sys/fs/cgroup"), groups)
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def cgroup_cores(root: Path, groups: str) -> float | None:
    """Read the smallest CPU quota, in cores, on the way from our cgroup up to ``root``.

    ``groups`` is the text of /proc/self/cgroup; versions 1 and 2 are understood. None: no quota.
    """
    quotas = [
        _quota_v2(group) if version == 2 else _quota_v1(group)
        for version, group in levels(root, groups, "cpu")
    ]
    return min((quota for quota in quotas if quota is not None), default=None)


def levels(root: Path, groups: str, controller: str) -> Iterator[tuple[int, Path]]:
    """Walk from our cgroup up to ``root``: the version and folder of each level."""
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            version, mounts = 2, [root, root / "unified"]
        elif controller in controllers.split(","):
            version, mounts = 1, [root / controllers, root / controller]
        else:
            continue
        inside = Path(path.lstrip("/"))
        for mount in mounts:
            for group in (inside, *inside.parents):
                yield version, mount / group


def _quota_v2(group: Path) -> float | None:
    quota, period = [*words_of(group / "cpu.max"), "max", "max"][:2]
    return None if "max" in (quota, period) else int(quota) / int(period)


def _quota_v1(group: Path) -> float | None:
    quota = words_of(group / "cpu.cfs_quota_us")
    period = words_of(group / "cpu.cfs_period_us")
    if not quota or not period or int(quota[0]) <= 0:
        return None
    return int(quota[0]) / int(period[0])


def words_of(file: Path) -> list[str]:
    """Read the words of a file of the kernel's; none where it does not exist."""
    try:
        return file.read_text().split()
    except OSError:  # this level has no such file
        return []


def read_nvml() -> list[Chip]:
    """Ask the driver; what it opened is closed again, so that a fork stays safe."""
    import pynvml  # here, because a launch on the CPU needs none of it

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver, or no GPU: nothing to list
        return []
    try:
        count = pynvml.nvmlDeviceGetCount()
        return [_chip(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]
    finally:
        pynvml.nvmlShutdown()


def _chip(handle: Any) -> Chip:
    import pynvml

    uuid, name = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle)
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        total_bytes, free_bytes = int(memory.total), int(memory.free)
    except pynvml.NVMLError:  # chips that share the host's memory do not tell
        total_bytes = free_bytes = 0
    try:
        capability = tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    except pynvml.NVMLError:  # a slice may leave the answer to its chip
        capability = None
    slices = tuple(
        replace(part, capability=part.capability or capability) for part in _slices(handle)
    )
    return Chip(uuid, name, total_bytes, free_bytes, slices, capability)


def _slices(handle: Any) -> list[Chip]:
    import pynvml

    try:
        if pynvml.nvmlDeviceIsMigDeviceHandle(handle):
            return []
        count = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except pynvml.NVMLError:  # this GPU cannot be cut
        return []
    slices = []
    for index in range(count):
        try:
            slices.append(_chip(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)))
        except pynvml.NVMLError_NotFound:  # numbers have gaps
            continue
    return slices


_QUESTION = """
import json, torch
found = []
for index in range(torch.cuda.device_count()):
    facts = torch.cuda.get_device_properties(index)
    found.append((str(getattr(facts, "uuid", "")), facts.name, facts.total_memory))
print("devices:" + json.dumps(found))
"""


@lru_cache(maxsize=8)
def _ask_torch(settings: tuple[tuple[str, str | None], ...]) -> list[tuple[str, str, int]]:
    """Let a child process open the GPUs and tell their order; it takes the seconds torch takes."""
    env = {name: value for name, value in os.environ.items() if name not in dict(settings)}
    env.update({name: value for name, value in settings if value is not None})
    try:
        child = subprocess.run(
            [sys.executable, "-c", _QUESTION],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CHILD_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        warnings.warn(f"a child process could not list the GPUs: {error}", stacklevel=2)
        return []
    return parse_answer(child.stdout)


def parse_answer(text: str) -> list[tuple[str, str, int]]:
    """Read (uuid, name, total bytes) of each GPU from what the child printed."""
    lines = [line for line in text.splitlines() if line.startswith("devices:")]
    found = json.loads(lines[-1].removeprefix("devices:")) if lines else []
    return [
        (uuid if not uuid or uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}", name, total)
        for uuid, name, total in found
    ]

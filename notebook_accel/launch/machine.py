"""The facts of this machine in one value: accelerators, cores, processor, memory.

Nothing is opened: GPUs are listed by the driver's NVML, the rest is read from files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from notebook_accel.config import cpu
from notebook_accel.config.installed import is_installed
from notebook_accel.launch.devices import (
    Device,
    accelerators,
    levels,
    usable_cores,
    words_of,
)

# By version of cgroups: the limit, what is used, and what of it is a cache that gives way.
_LIMITS = {
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
_PACKAGES = ("torchao", "deepspeed")


@dataclass(frozen=True)
class Machine:
    """What a run could use. Sizes that nobody tells are 0, names empty.

    ``bf16_unit`` and ``fp16_unit`` name what the CPU computes them with; ``knows_cpu`` is False
    where the system does not say (then neither unit means anything). ``packages`` are the
    optional ones that are installed, of those that some precision or strategy needs.
    """

    devices: tuple[Device, ...] = ()
    num_cores: int = 1
    cpu_name: str = ""
    knows_cpu: bool = True
    bf16_unit: str | None = None
    fp16_unit: str | None = None
    free_bytes: int = 0
    total_bytes: int = 0
    packages: frozenset[str] = frozenset()

    def of_kind(self, kind: str) -> tuple[Device, ...]:
        """Give the accelerators of one kind ("cuda", "mps", "tpu")."""
        return tuple(one for one in self.devices if one.kind == kind)

    @property
    def has_fp8(self) -> bool:
        """Whether the library for 8-bit numbers is installed."""
        return "torchao" in self.packages

    @property
    def kind(self) -> str:
        """What there is to train on: its accelerators, else the CPU."""
        return next((kind for kind in ("cuda", "tpu", "mps") if self.of_kind(kind)), "cpu")

    def num_ranks(self, kind: str) -> int:
        """How many ranks suit a run on ``kind``: one for each accelerator."""
        return max(1, len(self.of_kind(kind)))


def read_machine() -> Machine:
    """Look at this machine now."""
    text = cpu.cpuinfo()
    free_bytes, total_bytes = usable_memory(Path("/"))
    return Machine(
        tuple(accelerators()),
        usable_cores(),
        cpu.cpu_name(text or ""),
        text is not None,
        cpu.bf16_unit(text or ""),
        cpu.fp16_unit(text or ""),
        free_bytes,
        total_bytes,
        frozenset(filter(is_installed, _PACKAGES)),
    )


def usable_memory(root: Path) -> tuple[int, int]:
    """Read (free, total) bytes of memory that this process may use; 0 where nobody tells.

    A container's limit counts, at the tightest level from our cgroup up. ``root`` is "/".
    """
    facts = _pairs(root / "proc/meminfo")
    free_bytes = 1024 * facts.get("MemAvailable:", 0)
    total_bytes = 1024 * facts.get("MemTotal:", 0)
    try:
        groups = (root / "proc/self/cgroup").read_text()
    except OSError:  # not Linux
        return free_bytes, total_bytes
    for version, group in levels(root / "sys/fs/cgroup", groups, "memory"):
        limit_name, used_name, cache_name = _LIMITS[version]
        limit, used = words_of(group / limit_name), words_of(group / used_name)
        if limit and used and limit[0] != "max" and int(limit[0]) < total_bytes:
            total_bytes = int(limit[0])
            kept = int(used[0]) - _pairs(group / "memory.stat").get(cache_name, 0)
            free_bytes = min(free_bytes, max(0, total_bytes - kept))
    return free_bytes, total_bytes


def _pairs(file: Path) -> dict[str, int]:
    """Read lines of a name and a number; the file may be absent."""
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) > 1}

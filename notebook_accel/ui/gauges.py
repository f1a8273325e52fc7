"""What a rank uses of its machine, read from outside: the workers pay nothing for it.

Memory and processor time come from /proc (only Linux has it), a GPU's from the driver through
NVML, which is opened and closed again at each reading: a kernel that holds a device file open
could not fork workers any more.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from notebook_accel.events.model import Exited, Started
from notebook_accel.events.sinks import Sink
from notebook_accel.launch import devices
from notebook_accel.ui.pace import Pace

INTERVAL_S = 1.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True)
class Gauge:
    """One reading of a rank; None where nothing is known.

    Units: ``cpu_share`` is in cores (1.5: one and a half), ``gpu_share`` of the whole GPU.
    """

    rss_bytes: int | None = None
    cpu_share: float | None = None
    gpu_bytes: int | None = None
    gpu_total_bytes: int | None = None
    gpu_share: float | None = None


@dataclass(frozen=True)
class _Process:
    pid: int
    device: str
    looked_at: float = 0.0
    cpu_s: float = 0.0


class Gauges(Sink):
    """Reads what the ranks use, at most once a second: a Sink."""

    def __init__(self) -> None:
        self.ranks: dict[int, Gauge] = {}
        self.peak_bytes: dict[int, int] = {}
        self._processes: dict[int, _Process] = {}
        self._uuids: dict[int, str] | None = None
        self._pace = Pace(INTERVAL_S)

    def handle(self, event: Any) -> None:
        """Take one event: whom to look at, and whom no more."""
        if isinstance(event, Started):
            self._processes[event.rank] = _Process(event.pid, event.device)
        elif isinstance(event, Exited):
            self._processes.pop(event.rank, None)
            self.ranks.pop(event.rank, None)

    def tick(self) -> None:
        """Read all ranks, if it is time."""
        if self._processes:
            self._pace.run(self._read)

    def _read(self) -> None:
        gpus = self._gpus()
        for rank, process in list(self._processes.items()):
            now, cpu_s, rss_bytes = time.monotonic(), _cpu_s(process.pid), _rss(process.pid)
            share = None
            if cpu_s is not None and process.looked_at:
                share = max(0.0, cpu_s - process.cpu_s) / (now - process.looked_at)
            self._processes[rank] = _Process(process.pid, process.device, now, cpu_s or 0.0)
            self.ranks[rank] = Gauge(rss_bytes, share, *gpus.get(process.device, (None,) * 3))
            self.peak_bytes[rank] = max(self.peak_bytes.get(rank, 0), rss_bytes or 0)

    def _gpus(self) -> dict[str, tuple[int, int, float | None]]:
        """Give used and all bytes, and the share of time at work, of the GPUs that ranks have."""
        wanted = {one.device for one in self._processes.values() if one.device.startswith("cuda:")}
        if not wanted:
            return {}
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:  # the driver does not talk to us: then nothing is shown
            return {}
        try:
            return {device: found for device in wanted if (found := self._gpu(device)) is not None}
        finally:
            pynvml.nvmlShutdown()

    def _gpu(self, device: str) -> tuple[int, int, float | None] | None:
        if self._uuids is None:
            self._uuids = {one.index: one.uuid for one in devices.accelerators()}
        uuid = self._uuids.get(int(device.partition(":")[2]), "")
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        except pynvml.NVMLError:
            return None
        try:
            share = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        except pynvml.NVMLError:  # a slice of a GPU does not tell
            share = None
        return int(memory.used), int(memory.total), share


def _cpu_s(pid: int) -> float | None:
    """Processor seconds that all threads of a process have used."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended, or this is not Linux
        return None
    return (int(words[11]) + int(words[12])) / _TICKS_PER_S


def _rss(pid: int) -> int | None:
    """Bytes of memory that a process has in use, shared ones included."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        return None

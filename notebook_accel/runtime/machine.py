"""What this machine is and can do, for scripts that ask by Accelerate's names."""

from __future__ import annotations

import os
import platform
import re
import warnings
from dataclasses import dataclass

import torch

from notebook_accel.config.environment import get_int_from_env
from notebook_accel.config.placement import TELLERS

OLDEST_KERNEL = (5, 5)
FP8_CAPABILITY = (8, 9)  # Ada and Hopper, and what came after
DRIVER_WITH_P2P = 550  # since it, two cards of the 40 series talk through memory instead


@dataclass
class CPUInformation:
    """The place of a process among those that train on CPUs."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1


def get_cpu_distributed_information() -> CPUInformation:
    """Read this process's place from the variables of torchrun or of mpirun."""
    tellers = (TELLERS[name] for name in ("torchrun", "MPI", "Open MPI", "MVAPICH"))
    return CPUInformation(*map(get_int_from_env, zip(*tellers, strict=True), (0, 1, 0, 1)))


def check_os_kernel() -> None:
    """Warn of a Linux older than 5.5, under which processes were seen to hang."""
    found = re.match(r"(\d+)\.(\d+)", platform.release())
    if platform.system() != "Linux" or found is None:
        return
    if (int(found[1]), int(found[2])) < OLDEST_KERNEL:
        warnings.warn(
            f"This is Linux {platform.release()}; older than 5.5, under which training may hang. "
            "Update the system if it does.",
            stacklevel=2,
        )


def get_gpu_info() -> tuple[list[str], int]:
    """Give the names of the GPUs, and how many there are; no device is opened."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return [], 0
    try:
        count = pynvml.nvmlDeviceGetCount()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        names = [pynvml.nvmlDeviceGetName(one) for one in handles]
        return [one.decode() if isinstance(one, bytes) else one for one in names], count
    finally:
        pynvml.nvmlShutdown()


def check_cuda_p2p_ib_support() -> bool:
    """Tell whether GPUs can talk to each other directly: the 40 series needs a newer driver."""
    names, count = get_gpu_info()
    if count < 2 or not any("RTX 40" in name for name in names):
        return True
    return _driver() >= DRIVER_WITH_P2P


def check_cuda_fp8_capability() -> bool:
    """Tell whether the GPU computes in eight bits."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= FP8_CAPABILITY


def set_numa_affinity(local_process_index: int, verbose: bool | None = None) -> None:
    """Keep this process to the processors nearest to its GPU; nothing without one.

    Source: nvmlDeviceSetCpuAffinity of NVIDIA's management library.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return
    try:
        pynvml.nvmlDeviceSetCpuAffinity(pynvml.nvmlDeviceGetHandleByIndex(local_process_index))
    finally:
        pynvml.nvmlShutdown()
    if verbose:
        print(f"rank {local_process_index} of this machine runs on {os.sched_getaffinity(0)}")


override_numa_affinity = set_numa_affinity


def _driver() -> int:
    import pynvml

    pynvml.nvmlInit()
    try:
        version = pynvml.nvmlSystemGetDriverVersion()
    finally:
        pynvml.nvmlShutdown()
    text = version.decode() if isinstance(version, bytes) else version
    return int(text.split(".")[0])

"""Machines as plain data: what the facts layer would say on each."""

from __future__ import annotations

from notebook_accel.launch.devices import Device
from notebook_accel.launch.machine import Machine

GB = 10**9
XEON = {"num_cores": 4, "cpu_name": "Intel Xeon CPU @ 2.00GHz", "free_bytes": 28 * GB}


def gpus(
    num: int,
    name: str,
    capability: tuple[int, int] | None,
    total_gb: int = 16,
    free_gb: int = 15,
    prefix: str = "GPU",
) -> tuple[Device, ...]:
    return tuple(
        Device("cuda", i, name, f"{prefix}-{i}", total_gb * GB, free_gb * GB, capability)
        for i in range(num)
    )


def machine(*devices: Device, **facts: object) -> Machine:
    return Machine(devices, **{**XEON, "total_bytes": 31 * GB, **facts})  # type: ignore[arg-type]


PLAIN_CPU = machine()
AMX_CPU = machine(bf16_unit="AMX", fp16_unit="AMX-FP16")
T4 = machine(*gpus(1, "Tesla T4", (7, 5)))
KAGGLE = machine(*gpus(2, "Tesla T4", (7, 5)))
P100 = machine(*gpus(1, "Tesla P100-PCIE-16GB", (6, 0)))
A100S = machine(*gpus(4, "NVIDIA A100-SXM4-80GB", (8, 0), 85, 84), num_cores=32)
H100 = machine(*gpus(1, "NVIDIA H100 80GB HBM3", (9, 0), 85, 84))
MIG = machine(*gpus(1, "NVIDIA A100 MIG 1g.10gb", (8, 0), 10, 10, prefix="MIG"))
MAC = Machine((Device("mps", 0, "Apple GPU"),), num_cores=8, knows_cpu=False)
TPU = machine(Device("tpu", 0, "TPU (PJRT_DEVICE=TPU)"))
UNLIKE = machine(
    *gpus(1, "NVIDIA A100", (8, 0)), Device("cuda", 1, "Tesla T4", "GPU-9", capability=(7, 5))
)

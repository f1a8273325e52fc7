"""How each device computes each precision: natively, emulated, or not at all. Pure.

Sources: CUDA C++ Programming Guide, arithmetic instructions and compute capabilities; NVIDIA
architecture papers of Pascal (P100), Volta, Turing, Ampere, Ada and Hopper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from notebook_accel.launch.devices import Device
from notebook_accel.launch.machine import Machine

Mark = Literal["native", "emulated", "slow", "unknown", "absent"]
_ORDER: tuple[Mark, ...] = ("absent", "slow", "emulated", "unknown", "native")  # worst first


@dataclass(frozen=True)
class Standing:
    """How ``precision`` runs somewhere: a ``mark`` and, in words, ``why``."""

    precision: str
    mark: Mark
    why: str

    @property
    def can_be_picked(self) -> bool:
        """Whether a run in this precision works, fast or slow."""
        return self.mark != "absent"


def standing(precision: str, used: Sequence[Device], machine: Machine) -> Standing:
    """Tell how ``precision`` runs on the devices ``used``; none of them means the CPU.

    Unlike devices: the worst of them counts, since all ranks compute in the same precision.
    """
    if not used:
        return _on_cpu(precision, machine)
    if precision == "fp8" and not machine.has_fp8:
        return _NO_FP8
    found = [_on_device(precision, device) for device in used]
    worst = min(found, key=lambda one: _ORDER.index(one.mark))
    if len({one.mark for one in found}) == 1:
        return worst
    name = used[found.index(worst)].name
    return Standing(precision, worst.mark, f"{name}: {worst.why}")


def preselected(used: Sequence[Device], machine: Machine) -> tuple[str, str]:
    """Pick the precision that suits most people on the devices ``used``, and say why."""
    if not used:
        standings = [standing(name, used, machine) for name in ("bf16", "fp16")]
        native = " and ".join(one.precision for one in standings if one.mark == "native")
        if native:
            return "no", f"on a CPU small models gain nothing; {native} may pay for large ones"
        return "no", "this CPU computes no smaller numbers by itself"
    if all(one.kind == "mps" for one in used):
        return "no", "Apple GPUs gain little from smaller numbers"
    if standing("bf16", used, machine).mark == "native":
        return "bf16", "native here, and with the range of float32 it needs no loss scaling"
    if standing("fp16", used, machine).mark == "native":
        return "fp16", "native here, while bf16 is not; the loss is scaled for you"
    return "no", "nothing smaller than float32 is known to be fast here"


def _on_cpu(precision: str, machine: Machine) -> Standing:
    if precision == "no":
        return Standing(precision, "native", "float32")
    if precision == "fp8":
        return (
            Standing("fp8", "emulated", "right numbers, no speed") if machine.has_fp8 else _NO_FP8
        )
    if not machine.knows_cpu:
        return Standing(precision, "unknown", "this system does not say")
    unit = machine.bf16_unit if precision == "bf16" else machine.fp16_unit
    if unit:
        return Standing(precision, "native", unit)
    return Standing(precision, "emulated", "this CPU has no unit for it")


def _on_device(precision: str, device: Device) -> Standing:
    if precision == "no":
        return Standing(precision, "native", "float32")
    if precision == "fp8" and device.kind in ("mps", "tpu"):
        return Standing(precision, "absent", "torch has no 8-bit numbers there")
    if device.kind == "tpu":
        if precision == "bf16":
            return Standing(precision, "native", "the TPU's own format")
        return Standing(precision, "absent", "TPUs have no fp16")
    if device.kind == "mps":
        if precision == "fp16":
            return Standing(precision, "native", "Apple GPU")
        return Standing(precision, "unknown", "chip and macOS do not say")
    if device.capability is None:
        return Standing(precision, "unknown", "the driver does not say")
    return _on_cuda(precision, device.capability)


def _on_cuda(precision: str, capability: tuple[int, int]) -> Standing:
    """Compute capability 8.9 brought fp8, 8.0 bf16, 7.0 fp16 in tensor cores; 6.1 in name only."""
    chip = f"sm_{capability[0]}{capability[1]}"
    if precision == "fp8":
        if capability >= (8, 9):
            return Standing(precision, "native", f"tensor cores, {chip}")
        return Standing(precision, "emulated", f"{chip}: no speed; native from sm_89")
    if precision == "bf16":
        if capability >= (8, 0):
            return Standing(precision, "native", f"tensor cores, {chip}")
        return Standing(precision, "emulated", f"{chip}; native from sm_80")
    if capability >= (7, 0):
        return Standing(precision, "native", f"tensor cores, {chip}")
    if capability in ((6, 0), (6, 2)):
        return Standing(precision, "native", f"{chip}, no tensor cores")
    if capability == (6, 1):
        return Standing(precision, "slow", f"{chip}: 1/64 of float32's speed")
    return Standing(precision, "emulated", f"{chip} computes in float32")


_NO_FP8 = Standing("fp8", "absent", "needs torchao, the extra fp8")

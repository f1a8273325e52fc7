"""How each precision stands on each device, from plain data."""

from __future__ import annotations

import pytest

from notebook_accel.launch.devices import Device
from notebook_accel.launch.machine import Machine
from notebook_accel.launch.precisions import preselected, standing


def gpu(name: str, capability: tuple[int, int] | None) -> Device:
    return Device("cuda", 0, name, "GPU-0", 16 << 30, 15 << 30, capability)


T4, P100, GTX = gpu("Tesla T4", (7, 5)), gpu("Tesla P100", (6, 0)), gpu("GTX 1080", (6, 1))
V100, K80 = gpu("Tesla V100", (7, 0)), gpu("Tesla K80", (3, 7))
A100, H100 = gpu("NVIDIA A100", (8, 0)), gpu("NVIDIA H100", (9, 0))
AMD = gpu("AMD Instinct MI300X", None)
MPS, TPU = Device("mps", 0, "Apple GPU"), Device("tpu", 0, "TPU v3-8")
PLAIN = Machine(num_cores=4)
AMX = Machine(num_cores=4, bf16_unit="AMX", fp16_unit="AMX-FP16")
MAC = Machine(num_cores=8, knows_cpu=False)


@pytest.mark.parametrize(
    ("device", "bf16", "fp16", "chosen"),
    [
        (T4, "emulated", "native", "fp16"),
        (V100, "emulated", "native", "fp16"),
        (P100, "emulated", "native", "fp16"),
        (GTX, "emulated", "slow", "no"),
        (K80, "emulated", "emulated", "no"),
        (A100, "native", "native", "bf16"),
        (H100, "native", "native", "bf16"),
        (AMD, "unknown", "unknown", "no"),
        (MPS, "unknown", "native", "no"),
        (TPU, "native", "absent", "bf16"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_each_chip_is_marked_by_what_it_computes_itself(
    device: Device, bf16: str, fp16: str, chosen: str
) -> None:
    assert standing("bf16", [device], PLAIN).mark == bf16
    assert standing("fp16", [device], PLAIN).mark == fp16
    assert standing("no", [device], PLAIN).mark == "native"
    assert standing("fp8", [device], PLAIN).mark == "absent"
    assert preselected([device], PLAIN)[0] == chosen


@pytest.mark.parametrize(
    ("machine", "bf16", "fp16"),
    [
        (PLAIN, "emulated", "emulated"),
        (AMX, "native", "native"),
        (Machine(bf16_unit="AVX512-BF16"), "native", "emulated"),
        (MAC, "unknown", "unknown"),
    ],
)
def test_a_cpu_is_marked_by_its_units_and_stays_in_float32(
    machine: Machine, bf16: str, fp16: str
) -> None:
    assert standing("bf16", [], machine).mark == bf16
    assert standing("fp16", [], machine).mark == fp16
    assert standing("fp8", [], machine).mark == "absent"
    assert preselected([], machine)[0] == "no"


@pytest.mark.parametrize(
    ("device", "mark", "why"),
    [
        (None, "emulated", "right numbers, no speed"),
        (T4, "emulated", "sm_75: no speed; native from sm_89"),
        (A100, "emulated", "sm_80: no speed; native from sm_89"),
        (Device("cuda", 0, "NVIDIA L4", capability=(8, 9)), "native", "tensor cores, sm_89"),
        (H100, "native", "tensor cores, sm_90"),
        (AMD, "unknown", "the driver does not say"),
        (MPS, "absent", "torch has no 8-bit numbers there"),
        (TPU, "absent", "torch has no 8-bit numbers there"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_fp8_is_native_from_ada_on_and_emulated_below(
    device: Device | None, mark: str, why: str
) -> None:
    used = [] if device is None else [device]
    found = standing("fp8", used, Machine(packages=frozenset({"torchao"})))
    assert (found.mark, found.why) == (mark, why)
    without = standing("fp8", used, PLAIN)
    assert without.why == "needs torchao, the extra fp8"
    assert not without.can_be_picked


def test_unlike_gpus_are_as_good_as_the_worst_which_is_named() -> None:
    mixed = standing("bf16", [A100, T4], PLAIN)
    assert (mixed.mark, mixed.why) == (
        "emulated",
        "Tesla T4: sm_75; native from sm_80",
    )
    assert preselected([A100, T4], PLAIN)[0] == "fp16"


def test_each_choice_says_why() -> None:
    assert "needs no loss scaling" in preselected([A100], PLAIN)[1]
    assert "while bf16 is not" in preselected([T4], PLAIN)[1]
    assert "bf16 and fp16 may pay for large ones" in preselected([], AMX)[1]
    assert preselected([], PLAIN)[1] == "this CPU computes no smaller numbers by itself"
    assert "AMX" in standing("bf16", [], AMX).why
    assert "1/64" in standing("fp16", [GTX], PLAIN).why


def test_what_is_absent_cannot_be_picked() -> None:
    assert not standing("fp8", [H100], PLAIN).can_be_picked
    assert standing("bf16", [T4], PLAIN).can_be_picked

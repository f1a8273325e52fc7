"""bf16 on a CPU says once whether it is native or emulated."""

from __future__ import annotations

import subprocess
import sys

import pytest

from notebook_accel.config.cpu import bf16_unit

TWICE = """
import torch
from notebook_accel import Accelerator
for _ in range(2):
    accelerator = Accelerator(mixed_precision="bf16", cpu=True)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
accelerator.backward(model(torch.ones(1, 2)).sum())
optimizer.step()
"""


@pytest.mark.parametrize(
    ("flags", "unit"),
    [
        ("flags : fpu avx512f avx512_bf16 amx_bf16 amx_tile", "AMX"),
        ("flags : fpu avx512f avx512_bf16", "AVX512-BF16"),
        ("Features : fp asimd bf16 i8mm", "ARM BF16"),
        ("flags : fpu avx2 avx512f", None),
        ("", None),
    ],
)
def test_the_unit_for_bf16_is_read_from_the_flags(flags: str, unit: str | None) -> None:
    assert bf16_unit(flags) == unit


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what its CPU can")
def test_it_is_said_once() -> None:
    said = subprocess.run(
        [sys.executable, "-c", TWICE], capture_output=True, text=True, timeout=90, check=True
    ).stdout
    assert said.count("note: bf16 on this CPU is ") == 1
    assert "native (" in said or "emulated" in said

"""What pickers say of real GPUs is what torch says of them, and they open none."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

import notebook_accel
from notebook_accel import Accelerator, LaunchPicker, notebook_launcher
from notebook_accel.launch.machine import read_machine
from notebook_accel.launch.precisions import standing

GPUS = read_machine().of_kind("cuda")
needs_gpu = pytest.mark.skipif(not GPUS, reason="no CUDA GPU on this machine")


@pytest.fixture(scope="module", autouse=True)
def no_forkserver_is_left() -> Any:
    yield
    notebook_accel.shutdown()


def as_torch_sees_it() -> list[tuple[str, tuple[int, int], bool]]:
    return [
        (
            torch.cuda.get_device_name(index),
            torch.cuda.get_device_capability(index),
            torch.cuda.is_bf16_supported(including_emulation=False),
        )
        for index in range(torch.cuda.device_count())
    ]


@needs_gpu
def test_a_device_that_the_kernel_opened_is_told_with_how_workers_start() -> None:
    code = """
import torch
from notebook_accel import LaunchPicker
picker = LaunchPicker()
print(picker, picker.findings, sep="---", end="===")
torch.zeros(1, device="cuda")
print(picker.choose(num_processes=1), picker.findings, sep="---")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    (before, quiet), (after, told) = (one.split("---") for one in done.stdout.split("==="))
    assert "workers start by fork: no accelerator is open in this process" in before
    assert "workers start by forkserver: CUDA is open in this process" in after
    assert "a forked process cannot use an accelerator" not in quiet
    assert "note: a forked process cannot use an accelerator that its parent opened" in told


@needs_gpu
def test_names_capabilities_and_native_bf16_agree_with_torch() -> None:
    for gpu, (name, capability, native) in zip(
        GPUS, notebook_launcher(as_torch_sees_it, num_processes=1)[0], strict=True
    ):
        assert (gpu.name, gpu.capability) == (name, capability)
        assert 0 < gpu.free_bytes <= gpu.total_bytes
        if torch.version.cuda:
            assert (standing("bf16", [gpu], read_machine()).mark == "native") == native


@needs_gpu
def test_the_picked_gpu_and_precision_are_what_runs() -> None:
    picker = LaunchPicker(name="cuda").choose(device=GPUS[-1].index)

    def settings() -> tuple[str, str]:
        accelerator = Accelerator()
        return accelerator.mixed_precision, torch.cuda.get_device_name(accelerator.device)

    run = notebook_launcher(settings, config=picker)
    assert run[0] == (picker.values["mixed_precision"], GPUS[-1].name)


@needs_gpu
def test_a_timing_on_the_gpu_leaves_this_process_without_one() -> None:
    code = (
        "from notebook_accel import PrecisionPicker; import os\n"
        "timings = PrecisionPicker(device='cuda').time()\n"
        "assert timings.device == 'cuda:0', timings\n"
        "assert all(row.seconds > 0 for row in timings.rows), timings\n"
        "held = [os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')\n"
        "        if os.path.exists(f'/proc/self/fd/{fd}')]\n"
        "assert not any(path.startswith('/dev/nvidia') for path in held), held\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr

"""Launched scripts on real CUDA GPUs. Skipped, with the reason, where there are none."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from notebook_accel.launch.devices import accelerators
from tests.support.launches import launch

GPUS = [device for device in accelerators() if device.kind == "cuda"]
needs_gpu = pytest.mark.skipif(not GPUS, reason="no CUDA GPU on this machine")
needs_two = pytest.mark.skipif(
    len(GPUS) < 2, reason=f"needs two CUDA GPUs, this machine has {len(GPUS)}"
)
TELL = """
import json, os
import torch
from notebook_accel import Accelerator
accelerator = Accelerator()
total = accelerator.reduce(torch.ones(1, device=accelerator.device))
uuid = str(torch.cuda.get_device_properties(accelerator.device).uuid)
print(json.dumps([accelerator.process_index, accelerator.num_processes, str(accelerator.device),
    total.item(), uuid, os.environ.get("CUDA_VISIBLE_DEVICES")]))
"""


def told(done: subprocess.CompletedProcess[str]) -> list[list[object]]:
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    return sorted(map(json.loads, lines))


@needs_gpu
def test_every_gpu_has_a_rank(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(TELL)
    done = launch("script.py", cwd=tmp_path)
    found = told(done)
    assert [one[:4] for one in found] == [
        [rank, len(GPUS), f"cuda:{rank}", float(len(GPUS))] for rank in range(len(GPUS))
    ]
    assert GPUS[0].name in done.stderr


@needs_gpu
def test_more_ranks_than_gpus_are_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("open('ran', 'w')")
    done = launch("--num_processes", str(len(GPUS) + 1), "script.py", cwd=tmp_path)
    assert done.returncode == 2 and not (tmp_path / "ran").exists()
    assert "each rank needs a device of its own" in done.stderr


@needs_two
def test_gpu_numbers_pick_and_order(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(TELL)
    first, second = told(launch("--gpu_ids", "1,0", "script.py", cwd=tmp_path))
    assert (first[5], second[5]) == ("1,0", "1,0")
    assert [str(one[4]).removeprefix("GPU-") for one in (first, second)] == [
        GPUS[1].uuid.removeprefix("GPU-"),
        GPUS[0].uuid.removeprefix("GPU-"),
    ]

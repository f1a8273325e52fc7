"""Small tools on real CUDA GPUs. Skipped, with the reason, where there are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import notebook_accel
from notebook_accel import Accelerator, notebook_launcher
from notebook_accel.launch import devices

GPUS = [device for device in devices.accelerators() if device.kind == "cuda"]
needs_gpu = pytest.mark.skipif(not GPUS, reason="no CUDA GPU on this machine")
needs_two = pytest.mark.skipif(
    len(GPUS) < 2, reason=f"needs two CUDA GPUs, this machine has {len(GPUS)}"
)


@pytest.fixture(scope="module", autouse=True)
def no_forkserver_is_left() -> Any:
    yield
    notebook_accel.shutdown()


def use_tools(folder: str) -> dict[str, Any]:
    from notebook_accel import GradScalerKwargs, ProfileKwargs, find_executable_batch_size
    from notebook_accel.runtime.memory import should_reduce_batch_size

    said: dict[str, Any] = {}
    accelerator = Accelerator(
        mixed_precision="fp16",
        kwargs_handlers=[GradScalerKwargs(init_scale=4.0)],
        log_with="jsonl",
        project_dir=folder,
    )
    accelerator.init_trackers("gpu")
    model = accelerator.prepare(nn.Linear(64, 1))
    with accelerator.profile(ProfileKwargs(activities=["cpu", "cuda"])) as profiler:
        loss = model(torch.ones(8, 64, device=accelerator.device)).mean()
        accelerator.backward(loss)
    said["grad"] = accelerator.unwrap_model(model).bias.grad.item()
    said["profiled"] = len(profiler.key_averages()) > 0
    accelerator.log({"loss": loss})

    @find_executable_batch_size(starting_batch_size=2**50, reduce_batch_size_fn=lambda size: 4)
    def allocate(batch_size: int) -> int:
        torch.empty(batch_size, 2**10, device=accelerator.device)
        return batch_size

    said["fits"] = allocate()
    try:
        torch.empty(2**50, device=accelerator.device)
    except RuntimeError as error:
        said["recognized"] = should_reduce_batch_size(error)
    big = torch.empty(2**26, device=accelerator.device)
    del big
    before = torch.cuda.memory_reserved()
    accelerator.free_memory()
    said["given_back"] = before - torch.cuda.memory_reserved()
    accelerator.set_trigger()
    said["trigger"] = accelerator.check_trigger()
    accelerator.end_training()
    return said


@needs_gpu
def test_scaler_profile_log_batch_search_and_cache_work_on_a_gpu(tmp_path: Path) -> None:
    said = notebook_launcher(use_tools, (str(tmp_path),), 1)[0]
    assert said["grad"] == 4.0
    assert said["profiled"] and said["recognized"] and said["trigger"]
    assert said["fits"] == 4
    assert said["given_back"] >= 2**28
    assert "loss" in json.loads((tmp_path / "gpu.jsonl").read_text())


def average_small(hook: str) -> list[float]:
    from notebook_accel import DistributedDataParallelKwargs

    accelerator = Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(comm_hook=hook)])
    torch.manual_seed(0)
    model = accelerator.prepare(nn.Linear(4, 1))
    x = torch.full((1, 4), accelerator.process_index + 1.0, device=accelerator.device)
    accelerator.backward(model(x).sum())
    return accelerator.unwrap_model(model).weight.grad.flatten().tolist()


@needs_two
@pytest.mark.parametrize("hook", ["fp16", "bf16"])
def test_gradients_travel_in_half_precision_over_nccl(hook: str) -> None:
    for grads in notebook_launcher(average_small, (hook,), 2):
        assert grads == pytest.approx([1.5] * 4)

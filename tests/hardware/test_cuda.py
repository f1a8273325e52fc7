"""Launches on real CUDA GPUs. Skipped, with the reason, where there are none.

Nothing here may ask CUDA in this process before a test does so on purpose: counting goes through
NVML, as in the product.
"""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import notebook_accel
from notebook_accel import Accelerator, ConfigError, notebook_launcher
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


def train(steps: int = 5) -> dict[str, Any]:
    torch.manual_seed(0)
    accelerator = Accelerator()
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    for step in range(steps):
        torch.manual_seed(step)
        loss = model(torch.rand(16, 8).to(accelerator.device)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    properties = torch.cuda.get_device_properties(accelerator.device)
    return {
        "device": str(accelerator.device),
        "uuid": str(properties.uuid),
        "comm": dist.get_backend() if dist.is_initialized() else None,
        "model": model,
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


@needs_gpu
def test_one_gpu_trains_in_a_worker_and_the_model_comes_back_on_the_cpu() -> None:
    run = notebook_launcher(train)
    assert run[0]["device"] == "cuda:0"
    assert next(run[0]["model"].parameters()).device.type == "cpu"
    assert len(run.history["loss"]) == 5
    assert run.history["loss"][-1] < run.history["loss"][0]


@needs_gpu
def test_counting_by_nvml_agrees_with_cuda() -> None:
    names = notebook_launcher(
        lambda: [
            torch.cuda.get_device_properties(index).name
            for index in range(torch.cuda.device_count())
        ],
        (),
        1,
    )[0]
    assert names == [device.name for device in GPUS]


@needs_gpu
def test_asking_for_more_ranks_than_gpus_stops_with_both_ways_out() -> None:
    with pytest.raises(ConfigError, match=f"num_processes={len(GPUS) + 1}") as caught:
        notebook_launcher(train, (), len(GPUS) + 1)
    assert 'device="cpu"' in caught.value.fix
    run = notebook_launcher(
        lambda: str(Accelerator().device), (), len(GPUS) + 1, device="auto-or-cpu"
    )
    assert set(run) == {"cpu"}


@needs_gpu
def test_a_kernel_that_opened_cuda_launches_through_the_forkserver(
    capsys: pytest.CaptureFixture[str],
) -> None:
    weights = torch.ones(3, device="cuda")
    run = notebook_launcher(lambda w: (str(w.device), w.sum().item()), (weights,), 1)
    assert run[0] == ("cpu", 3.0)
    out = capsys.readouterr().out
    assert "by forkserver" in out
    assert "travel to the workers as CPU tensors" in out


@needs_gpu
def test_gpu_memory_is_free_again_after_a_run_and_after_a_failed_one() -> None:
    before = devices.accelerators()[0].free_bytes

    def hold(fail: bool) -> int:
        held = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
        if fail:
            raise ValueError("on purpose")
        return held.numel()

    assert notebook_launcher(hold, (False,), 1)[0] == 1 << 28
    with pytest.raises(ValueError, match="on purpose"):
        notebook_launcher(hold, (True,), 1)
    assert devices.accelerators()[0].free_bytes > before - (1 << 26)


@needs_gpu
def test_losses_are_read_without_waiting_for_the_device() -> None:
    """No synchronization is added by the live curve: CUDA itself would raise in this mode."""

    def main() -> int:
        accelerator = Accelerator()
        model = nn.Linear(8, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = accelerator.prepare(model, optimizer)
        batch = torch.rand(16, 8, device=accelerator.device)
        for step in range(20):
            if step == 5:  # the first steps allocate and may wait
                torch.cuda.set_sync_debug_mode("error")
            accelerator.backward(model(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.set_sync_debug_mode("default")
        return 20

    run = notebook_launcher(main, (), 1)
    assert len(run.history["loss"]) == run[0]


@needs_two
def test_two_gpus_train_together_over_nccl_and_agree() -> None:
    run = notebook_launcher(train, (), 2)
    assert [value["device"] for value in run] == ["cuda:0", "cuda:1"]
    assert [value["comm"] for value in run] == ["nccl", "nccl"]
    assert run[0]["uuid"] != run[1]["uuid"]
    assert torch.equal(run[0]["model"].weight, run[1]["model"].weight)


@needs_two
def test_a_list_picks_and_orders_gpus() -> None:
    forward = notebook_launcher(train, (), 2, device=[0, 1])
    backward = notebook_launcher(train, (), 2, device=[1, 0])
    assert [v["uuid"] for v in forward] == [v["uuid"] for v in backward][::-1]


@needs_two
def test_cuda_visible_devices_hides_gpus_from_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    second = notebook_launcher(train, (), 1, device=[1])[0]["uuid"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert notebook_launcher(train, (), 1)[0]["uuid"] == second
    with pytest.raises(ConfigError, match="num_processes=2"):
        notebook_launcher(train, (), 2)


@needs_two
def test_an_interrupted_nccl_run_stops_all_ranks_at_one_step() -> None:
    def main() -> None:
        train(10**9)

    handle = notebook_launcher(main, (), 2, block=False)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if len(handle.history["loss"]) > 50:
                break
        except (notebook_accel.LaunchError, KeyError):
            pass
        time.sleep(0.05)
    handle.stop()
    with pytest.raises(KeyboardInterrupt, match=r"stopped at step \d+;"):
        handle.wait(30)

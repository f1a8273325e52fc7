"""torch's profiler around a block."""

from __future__ import annotations

import json

import pytest
import torch

from notebook_accel import Accelerator, ProfileKwargs
from notebook_accel.errors import ConfigError


def test_a_profile_says_where_the_time_went_and_writes_a_trace(tmp_path) -> None:
    kwargs = ProfileKwargs(
        activities=["cpu"], record_shapes=True, output_trace_dir=str(tmp_path / "traces")
    )
    accelerator = Accelerator(cpu=True, kwargs_handlers=[kwargs])
    with accelerator.profile() as profiler:
        torch.ones(8, 8) @ torch.ones(8, 8)
    assert "aten::mm" in {one.key for one in profiler.key_averages()}
    trace = json.loads((tmp_path / "traces" / "profile_0.json").read_text())
    assert any("aten::mm" in str(event.get("name")) for event in trace["traceEvents"])


def test_a_profile_with_a_schedule_is_called_at_its_ends(tmp_path) -> None:
    ready = []
    handler = ProfileKwargs(
        schedule_option={"wait": 1, "warmup": 1, "active": 1, "repeat": 1},
        on_trace_ready=ready.append,
    )
    with Accelerator(cpu=True).profile(handler) as profiler:
        for _ in range(4):
            torch.ones(2, 2) @ torch.ones(2, 2)
            profiler.step()
    assert len(ready) == 1


def test_an_unknown_activity_is_refused_with_the_choices() -> None:
    with (
        pytest.raises(ConfigError) as error,
        Accelerator(cpu=True).profile(ProfileKwargs(activities=["gpu"])),
    ):
        pass
    assert "activities has 'gpu'" in error.value.what
    assert "cpu, " in error.value.why and "cuda" in error.value.why
    assert 'activities=["cpu", "cuda"]' in error.value.fix

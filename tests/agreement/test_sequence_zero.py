"""Sequences divided over ranks whose model is in the hands of DeepSpeed, as Accelerate has it."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from notebook_accel import (
    Accelerator,
    DeepSpeed,
    ParallelismConfig,
    SequenceParallel,
    notebook_launcher,
)
from notebook_accel.config.deepspeed import DeepSpeedPlugin
from notebook_accel.config.environment import patch_environment
from notebook_accel.config.wishes import SingleDevice, Strategy
from notebook_accel.errors import ConfigError
from tests.agreement.test_sequence_agrees import SETTINGS, train

needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None,
    reason="deepspeed is not installed: pip install 'notebook-accel[deepspeed]'",
)
WAYS = {stage: SequenceParallel(2, data=DeepSpeed(zero_stage=stage)) for stage in (2, 3)}


def trains(ways: dict[int, Strategy]) -> dict[int, list[float]]:
    return {stage: train(strategy, *SETTINGS[1]) for stage, strategy in ways.items()}


@pytest.fixture(scope="module")
def deepspeed() -> None:
    """Import it once: ranks are forks of this process."""
    with patch_environment(ds_accelerator="cpu"):
        importlib.import_module("deepspeed")


@needs_deepspeed
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("deepspeed")
def test_zero_over_parts_of_sequences_is_the_single_device() -> None:
    alone = notebook_launcher(trains, ({0: SingleDevice()},), 1, device="cpu")[0]
    told = notebook_launcher(trains, (WAYS,), 2, device="cpu", timeout_s=300)[0]
    for stage, found in told.items():
        assert found == pytest.approx(alone[0], abs=1e-5, rel=1e-5), stage


def test_axes_beside_deepspeed_divide_sequences_only() -> None:
    plugin = DeepSpeedPlugin(zero_stage=2)
    wish = ParallelismConfig(sp_size=2, dp_shard_size=2).wish(4, plugin.wish())
    assert wish == SequenceParallel(2, data=plugin.wish())
    with pytest.raises(ConfigError) as error:
        ParallelismConfig(tp_size=2).wish(2, plugin.wish())
    assert "ParallelismConfig(tp_size=2) under DeepSpeed" in error.value.what
    with pytest.raises(ConfigError, match="in a world of 1"):
        Accelerator(
            cpu=True,
            deepspeed_plugin=plugin,
            parallelism_config=ParallelismConfig(sp_size=2),
        )

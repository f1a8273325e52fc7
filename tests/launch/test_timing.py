"""Precisions are measured by a child; what it cannot do is said."""

from __future__ import annotations

import pytest

from notebook_accel.errors import LaunchError
from notebook_accel.launch.timing import time_precisions


def test_each_precision_is_measured_against_float32() -> None:
    timings = time_precisions("cpu", ["no", "bf16"])
    assert timings.device == "cpu"
    full, half = timings.rows
    assert (full.precision, half.precision) == ("no", "bf16")
    assert full.speed == 1
    assert half.speed == pytest.approx(full.seconds / half.seconds)
    assert timings.of("bf16") == half
    assert timings.of("fp16") is None


def test_a_device_that_is_not_there_is_an_error_with_the_childs_words() -> None:
    with pytest.raises(LaunchError) as caught:
        time_precisions("nowhere:7", ["no"])
    assert caught.value.what.startswith("the timing on nowhere:7 failed: RuntimeError: ")
    assert "a child process opens the device" in caught.value.why
    assert "notebook-accel env" in caught.value.fix


def test_a_child_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("notebook_accel.launch.timing.TIMEOUT_S", 0.01)
    with pytest.raises(LaunchError) as caught:
        time_precisions("cpu", ["no"])
    assert caught.value.what == "the timing on cpu did not end within 0 s"
    assert caught.value.fix == "try again when the device is free"

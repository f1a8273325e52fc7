"""Precisions are measured by a child; what it cannot do is said."""

from __future__ import annotations

import pytest

from notebook_accel.errors import LaunchError
from notebook_accel.launch.timing import Timing, Timings, time_precisions


def test_each_precision_is_measured_against_float32() -> None:
    timings = time_precisions("cpu", ["no", "bf16", "fp8"])  # fp8 is no type of a plain product
    assert timings.device == "cpu"
    full, half = timings.rows
    assert (full.precision, half.precision) == ("no", "bf16")
    assert full.speed == 1
    assert half.speed == pytest.approx(full.seconds / half.seconds)
    assert timings.of("bf16") == half
    assert timings.of("fp16") is None


def test_timings_print_as_a_table() -> None:
    rows = (Timing("no", 0.0024, 1.0), Timing("bf16", 0.0008, 3.0), Timing("fp16", 0, 0, "none"))
    assert repr(Timings("cpu", 512, rows)).splitlines() == [
        "a matrix product      no      bf16",
        "takes                 2.4 ms  0.8 ms",
        "speed (float32 is 1)  1       3",
        "fp16 failed           none",
        "measured with 512 x 512 matrices on one CPU thread",
    ]


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.00052, "0.52 ms"), (0.099, "99 ms"), (0.0997, "0.1 s"), (2.0, "2.0 s")]
)
def test_a_time_is_written_in_its_unit(seconds: float, said: str) -> None:
    assert Timings("cuda:0", 8, (Timing("no", seconds, 1.0),)).table()[1] == ["takes", said]


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

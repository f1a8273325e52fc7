"""A pipeline equals the single device: one curve, one gradient norm, the same parameters."""

from __future__ import annotations

import pytest

from notebook_accel import Accelerator, notebook_launcher
from notebook_accel.config.wishes import Pipeline, SingleDevice
from tests.agreement.test_strategies_agree import PRECISIONS, train

PIPELINES = {
    "1f1b": Pipeline(),
    "gpipe": Pipeline(schedule="gpipe", num_microbatches=4),
}
# accumulation, precision, clip, rows: 28 end in a window of 4 rows
SETTINGS = [(1, "no", 0.1, 24), (2, "no", 1e9, 28), (2, "bf16", 0.1, 28)]


def trains_every_way() -> dict[tuple, list[float]]:
    if Accelerator(cpu=True).num_processes == 1:
        return {setting: train(SingleDevice(), *setting) for setting in SETTINGS}
    return {
        (name, *setting): train(wish, *setting)
        for name, wish in PIPELINES.items()
        for setting in SETTINGS
    }


@pytest.fixture(scope="module")
def alone() -> dict[tuple, list[float]]:
    return notebook_launcher(trains_every_way, (), 1, device="cpu")[0]


@pytest.mark.parametrize("size", [2, 4])
def test_every_pipeline_is_the_single_device(alone: dict, size: int) -> None:
    for rank, found in enumerate(notebook_launcher(trains_every_way, (), size, device="cpu")):
        for (name, *setting), numbers in found.items():
            tolerance = PRECISIONS[setting[1]]
            expected = pytest.approx(alone[tuple(setting)], abs=tolerance, rel=tolerance)
            assert numbers == expected, (rank, name, setting)

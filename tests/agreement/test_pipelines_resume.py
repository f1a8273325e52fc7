"""Pipelines of every kind save whole states, and go on from those of any other strategy."""

from __future__ import annotations

from pathlib import Path

import pytest

from notebook_accel import notebook_launcher
from notebook_accel.config.wishes import FSDP, Pipeline, SingleDevice, Strategy, TensorParallel
from tests.agreement.test_resume_across_strategies import loads_and_goes_on, trains_and_saves
from tests.support.nets import PLAN

SPLIT = ("blocks.0", "blocks.1", "leave")
WAYS: dict[str, tuple[int, Strategy]] = {
    "one device": (1, SingleDevice()),
    "several stages a rank": (2, Pipeline(4, split=SPLIT, stages_per_rank=2)),
    "in parts": (4, Pipeline(inside=FSDP())),
    "divided": (4, Pipeline(inside=TensorParallel(plan=PLAN))),
    "fsdp": (2, FSDP()),
}


pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[float]]]:
    root, found = tmp_path_factory.mktemp("saved"), {}
    for name, (size, strategy) in WAYS.items():
        folder = root / name.replace(" ", "-")
        run = notebook_launcher(trains_and_saves, (strategy, folder), size, device="cpu")
        found[name] = (folder, run[0][3:])
    return found


@pytest.mark.parametrize("name", WAYS)
def test_a_run_goes_on_from_any_pipeline_and_in_any(saved: dict, name: str) -> None:
    never_stopped = saved["one device"][1]
    assert saved[name][1] == pytest.approx(never_stopped, abs=1e-5)
    size, strategy = WAYS[name]
    folders = [folder for folder, _ in saved.values()]
    run = notebook_launcher(loads_and_goes_on, (strategy, folders), size, device="cpu")
    for source, found in zip(saved, run[0], strict=True):
        assert found == pytest.approx(never_stopped, abs=1e-5), source

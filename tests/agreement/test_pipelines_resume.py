"""Pipelines of every kind save whole states, and go on from those of any other strategy."""

from __future__ import annotations

from pathlib import Path

import pytest

from notebook_accel import notebook_launcher
from notebook_accel.config.wishes import FSDP, Pipeline, SingleDevice, Strategy, TensorParallel
from tests.agreement.test_resume_across_strategies import loads_and_goes_on, trains_and_saves
from tests.agreement.test_strategies_agree import PLAN

SPLIT = ("blocks.0", "blocks.1", "leave")
WAYS: dict[str, tuple[int, Strategy]] = {
    "one device": (1, SingleDevice()),
    "several stages a rank": (2, Pipeline(4, split=SPLIT, stages_per_rank=2)),
    "in parts": (4, Pipeline(inside=FSDP())),
    "divided": (4, Pipeline(inside=TensorParallel(plan=PLAN))),
    "fsdp": (2, FSDP()),
}


@pytest.mark.slow
def test_a_run_goes_on_from_any_pipeline_and_in_any(tmp_path: Path) -> None:
    saved: dict[str, Path] = {}
    for name, (size, strategy) in WAYS.items():
        saved[name] = tmp_path / name.replace(" ", "-")
        run = notebook_launcher(trains_and_saves, (strategy, saved[name]), size, device="cpu")
        if name == "one device":
            never_stopped = run[0][3:]
        assert run[0][3:] == pytest.approx(never_stopped, abs=1e-5), name
    for name, (size, strategy) in WAYS.items():
        folders = [*saved.values()]
        run = notebook_launcher(loads_and_goes_on, (strategy, folders), size, device="cpu")
        for source, found in zip(saved, run[0], strict=True):
            assert found == pytest.approx(never_stopped, abs=1e-5), (source, name)

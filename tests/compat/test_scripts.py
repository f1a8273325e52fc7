"""Scripts written for Accelerate, with nothing changed but the import, on one and two ranks."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from notebook_accel import notebook_launcher
from tests.support.ranks import run_ranks

SCRIPTS = Path(__file__).parent / "scripts"


def main_of(script: str) -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location(f"{script}_script", SCRIPTS / f"{script}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    main: Callable[..., Any] = module.main
    return main


def run(script: str, num_processes: int, *argv: object) -> list[Any]:
    """Give what each rank's ``main`` returned."""
    words = [str(one) for one in argv]
    result = notebook_launcher(main_of(script), (words,), num_processes, device="cpu")
    return [result[rank] for rank in range(num_processes)]


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_nlp(precision: str) -> None:
    one, two = (run("nlp", n, "--mixed_precision", precision) for n in (1, 2))
    for rank in [*one, *two]:
        assert rank["counted"] == 61
        assert rank["accuracy"] > 0.9
        assert rank["lr"] == pytest.approx(0.0, abs=1e-3)  # its schedule ends with the training
    assert two[0] == two[1]


def test_cv(tmp_path: Path) -> None:
    for num_processes in (1, 2):
        folder = tmp_path / str(num_processes)
        folder.mkdir()
        ranks = run("cv", num_processes, "--output_dir", folder)
        for rank in ranks:
            assert rank["counted"] == 99
            assert rank["accuracy"] > 0.9
        assert sorted(os.listdir(folder)) == ["exported", "model.pt"]
        assert (folder / "exported" / "model.safetensors").exists()


def test_gradient_accumulation() -> None:
    """Eight samples an update, however they are come by."""
    name, steps = "gradient_accumulation", "--gradient_accumulation_steps"
    big = run(name, 1, "--batch_size", 8)[0]
    assert big["updates"] == 14
    for num_processes, accumulated, rows in ((1, 2, 4), (2, 1, 4), (2, 2, 2), (1, 4, 2)):
        for plugin in ([], ["--plugin"]):
            ranks = run(name, num_processes, steps, accumulated, "--batch_size", rows, *plugin)
            for rank in ranks:
                assert rank == pytest.approx(big, rel=1e-5)


@pytest.mark.parametrize("num_processes", [1, 2])
@pytest.mark.parametrize("by_hand", [[], ["--skip_by_hand"]])
def test_checkpointing(tmp_path: Path, num_processes: int, by_hand: list[str]) -> None:
    """In the middle of an epoch, whether or not the script itself skips what it has seen."""
    folder = tmp_path / "runs"
    whole = run("checkpointing", num_processes, "--output_dir", folder)
    resume = ["--resume_from_checkpoint", folder / "step_3", *by_hand]
    again = run("checkpointing", num_processes, "--output_dir", tmp_path / "again", *resume)
    assert again == whole


def test_tracking(tmp_path: Path) -> None:
    losses = []
    for num_processes in (1, 2):
        folder = tmp_path / str(num_processes)
        folder.mkdir()
        ranks = run("tracking", num_processes, "--project_dir", folder)
        losses.append([rank["train_loss"] for rank in ranks])
        assert [rank["lines"] for rank in ranks] == [3, 0][:num_processes]
        lines = json.loads((folder / "mine.json").read_text())
        assert lines[0] == {"lr": 0.1, "betas": [0.9, 0.99], "name": None}
        assert [(line["epoch"], line["step"]) for line in lines[1:]] == [(0, 0), (1, 1)]
        assert lines[2]["train_loss"] == ranks[0]["train_loss"]
        assert any(path.suffix == ".jsonl" for path in folder.rglob("*"))
    assert losses[1][0] == losses[1][1]


def test_early_stopping() -> None:
    assert run("early_stopping", 1)[0]["stopped"]
    for argv in ([], ["--only_on_rank", 1]):
        first, second = run("early_stopping", 2, *argv)
        assert first == second and first["stopped"] and first["steps"] < 200


def test_gan() -> None:
    """The generator learns from the critic of its own micro-batch: like windows are alike."""
    for steps, rows in ((1, 32), (2, 16)):
        options = ["--gradient_accumulation_steps", steps, "--batch_size"]
        one = run("gan", 1, *options, rows)[0]["weights"]
        for rank in run("gan", 2, *options, rows // 2):
            assert rank["weights"] == pytest.approx(one, rel=1e-3)


def test_batch_size_finder() -> None:
    for num_processes in (1, 2):
        for rank in run("batch_size_finder", num_processes, "--fits", 50):
            assert rank == {"found": 45, "tried": [64, 57, 51, 45]}


def test_a_script_runs_under_torchruns_environment_too() -> None:
    path = str(SCRIPTS / "nlp.py")
    body = (
        "import runpy, sys\n"
        "def main():\n"
        "    sys.argv = ['nlp.py', '--cpu']\n"
        f"    return runpy.run_path({path!r})['main']()\n"
    )
    ranks = run_ranks(body, 2)
    assert ranks[0] == ranks[1] and ranks[0]["counted"] == 61 and ranks[0]["accuracy"] > 0.9

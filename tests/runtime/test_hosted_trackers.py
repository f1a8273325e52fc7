"""Trackers that stand on other packages.

W&B (offline) and MLflow (a local database) are tried for real where they are installed. For the
others a stand-in module records the calls that our adapter makes: these tests know only the shapes
that the packages document, not the packages. The same runs were made by hand, offline, with aim
3.29, clearml 2.1, comet_ml 3.58, dvclive 3.49, swanlab 0.10 and trackio 0.43.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from notebook_accel import Accelerator


class Recorder:
    """A stand-in for a package: every attribute is there, every call is written down."""

    def __init__(self, path: str, calls: list[Any]) -> None:
        self.__dict__.update(_path=path, _calls=calls)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Recorder(f"{self._path}.{name}", self._calls)

    def __setattr__(self, name: str, value: Any) -> None:
        self._calls.append((f"{self._path}.{name} =", value))

    def __setitem__(self, name: str, value: Any) -> None:
        self._calls.append((f"{self._path}[{name!r}] =", value))

    def __call__(self, *args: Any, **kwargs: Any) -> Recorder:
        self._calls.append((self._path, *args, kwargs))
        return Recorder(f"{self._path}()", self._calls)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def install(name: str) -> list[Any]:
        calls: list[Any] = []
        module = Recorder(name, calls)
        module.__dict__["__spec__"] = ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
        return calls

    yield install


VALUES = {"loss": 0.5, "note": "hi"}


def recorded(
    tracker: str, calls: list[Any], folder: Path | None = None, /, **init: Any
) -> list[Any]:
    accelerator = Accelerator(cpu=True, log_with=tracker, project_dir=folder)
    accelerator.init_trackers("project", {"lr": 0.1, "path": Path("x")}, {tracker: init})
    accelerator.log(VALUES, step=3)
    accelerator.end_training()
    return calls


CONFIG = {"lr": 0.1, "path": "x"}


def test_trackio_is_called_as_documented(pretend) -> None:
    assert recorded("trackio", pretend("trackio"), name="first") == [
        ("trackio.init", {"project": "project", "name": "first"}),
        ("trackio.init().config.update", CONFIG, {}),
        ("trackio.init().log", VALUES, {"step": 3}),
        ("trackio.init().finish", {}),
    ]


def test_swanlab_is_called_as_documented(pretend) -> None:
    calls = pretend("swanlab")
    opened, config, text, logged, closed = recorded("swanlab", calls, mode="offline")
    assert opened == ("swanlab.init", {"project": "project", "mode": "offline"})
    assert config == ("swanlab.init().config.update", CONFIG, {})
    assert text == ("swanlab.Text", "hi", {})
    assert logged[0] == "swanlab.init().log" and logged[2] == {"step": 3}
    assert logged[1]["loss"] == 0.5 and isinstance(logged[1]["note"], Recorder)
    assert closed == ("swanlab.init().finish", {})
    accelerator = Accelerator(cpu=True, log_with="swanlab")
    accelerator.init_trackers("project")
    calls.clear()
    accelerator.get_tracker("swanlab").log_images({"img": ["a"]}, step=1)
    assert calls[0] == ("swanlab.Image", "a", {})
    assert calls[1][2] == {"step": 1} and list(calls[1][1]) == ["img"]


def test_comet_is_called_as_documented(pretend) -> None:
    assert recorded("comet_ml", pretend("comet_ml"), online=False) == [
        ("comet_ml.start", {"project": "project", "online": False}),
        ("comet_ml.start().log_parameters", CONFIG, {}),
        ("comet_ml.start().set_step", 3, {}),
        ("comet_ml.start().log_metric", "loss", 0.5, {"step": 3}),
        ("comet_ml.start().log_other", "note", "hi", {}),
        ("comet_ml.start().end", {}),
    ]


def test_aim_is_called_as_documented(pretend, tmp_path: Path) -> None:
    calls = pretend("aim")
    *opened, loss, text, note, closed = recorded("aim", calls, tmp_path, log_system_params=False)
    assert opened == [
        ("aim.Run", {"repo": str(tmp_path), "log_system_params": False}),
        ("aim.Run().name =", "project"),
        ("aim.Run()['hparams'] =", CONFIG),
    ]
    assert loss == ("aim.Run().track", 0.5, {"name": "loss", "step": 3})
    assert text == ("aim.Text", "hi", {})
    assert note[0] == "aim.Run().track" and note[2] == {"name": "note", "step": 3}
    assert closed == ("aim.Run().close", {})
    accelerator = Accelerator(cpu=True, log_with="aim", project_dir=tmp_path)
    accelerator.init_trackers("project")
    calls.clear()
    accelerator.get_tracker("aim").log_images({"img": ("pixels", "a cat")}, step=1)
    assert calls[0] == ("aim.Image", "pixels", {"caption": "a cat"})
    assert calls[1][2] == {"name": "img", "step": 1}


def test_dvclive_is_called_as_documented(pretend) -> None:
    assert recorded("dvclive", pretend("dvclive"), dir="live") == [
        ("dvclive.Live", {"dir": "live"}),
        ("dvclive.Live().log_params", CONFIG, {}),
        ("dvclive.Live().step =", 3),
        ("dvclive.Live().log_metric", "loss", 0.5, {}),
        ("dvclive.Live().log_metric", "note", "hi", {}),
        ("dvclive.Live().next_step", {}),
        ("dvclive.Live().end", {}),
    ]


def test_clearml_goes_on_with_a_task_that_runs_already(pretend) -> None:
    calls = pretend("clearml")
    assert recorded("clearml", calls) == [
        ("clearml.Task.current_task", {}),
        ("clearml.Task.current_task().connect_configuration", CONFIG, {}),
        ("clearml.Task.current_task().get_logger", {}),
        (
            "clearml.Task.current_task().get_logger().report_scalar",
            {"title": "loss", "series": "train", "value": 0.5, "iteration": 3},
        ),
        ("clearml.Task.current_task().get_logger().report_text", "note: hi", {}),
    ]


def test_clearml_opens_and_closes_a_task_of_its_own(pretend) -> None:
    calls = pretend("clearml")
    tasks = Recorder("Task", calls)
    tasks.__dict__["current_task"] = lambda: None
    sys.modules["clearml"].__dict__["Task"] = tasks
    accelerator = Accelerator(cpu=True, log_with="clearml")
    accelerator.init_trackers("project", init_kwargs={"clearml": {"task_name": "first"}})
    tracker = accelerator.get_tracker("clearml")
    tracker.log({"eval_loss": 1.0})
    tracker.log({"eval_loss": 1.0}, step=2)
    tracker.log_table("test_rows", ["a"], [[1]], step=2)
    tracker.log_images({"img": "pixels"}, step=2)
    accelerator.end_training()
    assert calls[0] == ("Task.init", {"project_name": "project", "task_name": "first"})
    said = {path.rpartition(".")[2]: rest for path, *rest in calls}
    assert said["report_single_value"] == [{"name": "eval_loss", "value": 1.0}]
    assert said["report_scalar"] == [
        {"title": "loss", "series": "eval", "value": 1.0, "iteration": 2}
    ]
    assert said["report_table"] == [
        {"title": "rows", "series": "test", "table_plot": [["a"], [1]], "iteration": 2}
    ]
    assert said["report_image"] == [
        {"title": "img", "series": "train", "iteration": 2, "image": "pixels"}
    ]
    assert calls[-1] == ("Task.init().close", {})


def run_script(script: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_keeps_an_offline_run(tmp_path: Path) -> None:
    said = run_script(
        """
from pathlib import Path
from notebook_accel import Accelerator
accelerator = Accelerator(cpu=True, log_with="wandb")
accelerator.init_trackers(
    "project", {"lr": 0.1, "path": Path("x")}, {"wandb": {"mode": "offline", "dir": "."}}
)
accelerator.log({"loss": 0.5}, step=3, log_kwargs={"wandb": {"commit": True}})
tracker = accelerator.get_tracker("wandb")
tracker.log_table("rows", columns=["a"], data=[[1]], step=4)
run = accelerator.get_tracker("wandb", unwrap=True)
print("read:", run.project, dict(run.config), run.summary["loss"])
accelerator.end_training()
""",
        tmp_path,
    )
    assert "read: project {'lr': 0.1, 'path': 'x'} 0.5" in said
    assert list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))


@pytest.mark.slow
@pytest.mark.skipif(
    not (importlib.util.find_spec("mlflow") and importlib.util.find_spec("alembic")),
    reason="mlflow with a database is not installed",
)
def test_mlflow_keeps_parameters_numbers_and_artifacts(tmp_path: Path) -> None:
    said = run_script(
        """
import mlflow
from notebook_accel import Accelerator
mlflow.set_tracking_uri("sqlite:///runs.db")
accelerator = Accelerator(cpu=True, log_with="mlflow")
config = {f"p{i}": i for i in range(150)} | {"nested": {"a": [1, 2]}, "long": "x" * 9000}
given = {"logging_dir": "artifacts", "tags": {"k": "v"}, "run_name": "first"}
accelerator.init_trackers("project", config, {"mlflow": given})
accelerator.log({"loss": 0.5, "text": "left out"}, step=3)
with open("made.txt", "w") as file:
    file.write("made")
tracker = accelerator.get_tracker("mlflow")
tracker.log_artifact("made.txt")
name = tracker.tracker.info.run_id
accelerator.end_training()
run = mlflow.get_run(name)
(point,) = mlflow.MlflowClient().get_metric_history(name, "loss")
print("read:", len(run.data.params), run.data.params["nested.a"], len(run.data.params["long"]))
print("read:", run.data.metrics, point.step, run.data.tags["k"], run.info.run_name)
print("read:", run.info.status, mlflow.get_experiment_by_name("project").artifact_location)
""",
        tmp_path,
    )
    assert "read: 152 [1, 2] 6000" in said
    assert "read: {'loss': 0.5} 3 v first" in said
    assert "read: FINISHED" in said and "artifacts" in said
    assert list(tmp_path.glob("artifacts/**/made.txt"))

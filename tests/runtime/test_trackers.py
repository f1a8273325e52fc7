"""Trackers that write files, for real: JSON lines, tables, TensorBoard, and MLflow and W&B offline.

The hosted ones are tried in test_hosted_trackers.
"""

from __future__ import annotations

import csv
import dataclasses
import enum
import json
import math
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from notebook_accel import Accelerator
from notebook_accel.errors import ConfigError, MissingPackage
from notebook_accel.runtime import tracking
from notebook_accel.runtime.trackers.base import (
    BlankTracker,
    GeneralTracker,
    TrackerIncomplete,
    flat,
    on_main_process,
    plain,
)
from notebook_accel.runtime.tracking import (
    filter_trackers,
    get_available_trackers,
    known_trackers,
    register_tracker_class,
)


class Color(enum.Enum):
    RED = "red"


class Kind(str, enum.Enum):
    JSONL = "jsonl"


@dataclasses.dataclass
class Inner:
    depth: int = 2


CONFIG = {
    "lr": 0.1,
    "steps": 10,
    "amp": True,
    "nothing": None,
    "name": "net",
    "dtype": torch.bfloat16,
    "path": Path("a") / "b",
    "color": Color.RED,
    "inner": Inner(),
    "nested": {"betas": (0.9, 0.99), 3: {1}},
    "small": torch.arange(2),
    "scalar": torch.tensor(1.5),
    "large": torch.zeros(1000),
    "loss": torch.nn.MSELoss(),
    "class": dict,
}


def trained(accelerator: Accelerator, steps: int = 2) -> None:
    model = torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(steps):
        accelerator.backward(model(torch.ones(1, 1)).sum())
        optimizer.step()


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_values_of_any_type_have_a_plain_form() -> None:
    got = json.loads(json.dumps(plain(CONFIG)))
    assert got["inner"] == {"depth": 2}
    assert got["nested"] == {"betas": [0.9, 0.99], "3": [1]}
    assert (got["color"], got["path"], got["dtype"]) == ("red", "a/b", "torch.bfloat16")
    assert (got["small"], got["scalar"], got["nothing"]) == ([0, 1], 1.5, None)
    assert got["large"].startswith("tensor(") and got["loss"] == "MSELoss()"
    assert flat({"a": {"b": 1, "c": [2]}, "d": None}) == {"a.b": 1, "a.c": "[2]", "d": "None"}


def test_json_lines_hold_the_configuration_and_every_log(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, log_with="jsonl", project_dir=tmp_path)
    accelerator.init_trackers("digits", config=CONFIG)
    accelerator.log({"loss": torch.tensor(0.5), "note": "warm"})
    trained(accelerator)
    accelerator.log({"loss": float("nan"), "by_class": {"cat": 1}})
    accelerator.log({"loss": 0.25}, step=7)
    path = tmp_path / "digits.jsonl"
    assert accelerator.get_tracker("jsonl", unwrap=True) == path
    config, *logs = rows_of(path)
    assert config["config"]["nested"]["betas"] == [0.9, 0.99]
    assert [row["step"] for row in logs] == [0, 2, 7]
    assert (logs[0]["loss"], logs[0]["note"]) == (0.5, "warm")
    assert math.isnan(logs[1]["loss"]) and logs[1]["by_class"] == {"cat": 1}
    accelerator.end_training()
    assert accelerator.trackers == []


def test_logs_are_counted_where_nothing_prepared_steps(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, log_with="jsonl", project_dir=tmp_path)
    accelerator.init_trackers("counted")
    for _ in range(3):
        accelerator.log({"reward": 1.0})
    assert [row["step"] for row in rows_of(tmp_path / "counted.jsonl")] == [0, 1, 2]


def test_a_run_started_again_goes_on_in_its_files(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        accelerator = Accelerator(cpu=True, log_with=["jsonl", "csv"], project_dir=tmp_path)
        accelerator.init_trackers("group/again")
        accelerator.log({"loss": value})
        accelerator.end_training()
    assert [row["loss"] for row in rows_of(tmp_path / "group" / "again.jsonl")] == [1.0, 2.0]
    table = list(csv.DictReader((tmp_path / "group" / "again.csv").open(newline="")))
    assert [row["loss"] for row in table] == ["1.0", "2.0"]


def test_a_table_gets_a_column_for_each_new_name(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, log_with="csv", project_dir=tmp_path)
    accelerator.init_trackers("table", config=CONFIG)
    accelerator.log({"loss": 1.0}, step=1)
    accelerator.log({"accuracy": 0.5, "say": 'a, "b"\nc'}, step=2)
    accelerator.log({"loss": 2.0}, step=3)
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["time", "step", "loss", "accuracy", "say"]
    assert [(row["step"], row["loss"], row["accuracy"]) for row in rows] == [
        ("1", "1.0", ""),
        ("2", "", "0.5"),
        ("3", "2.0", ""),
    ]
    assert rows[1]["say"] == 'a, "b"\nc'
    assert json.loads((tmp_path / "table.config.json").read_text())["inner"] == {"depth": 2}
    assert sorted(one.name for one in tmp_path.iterdir()) == ["table.config.json", "table.csv"]


def test_without_log_with_a_project_directory_gets_json_lines(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, project_dir=tmp_path)
    accelerator.init_trackers("plain", {"lr": 1})
    accelerator.log({"loss": 1.0})
    assert len(rows_of(tmp_path / "plain.jsonl")) == 2
    nowhere = Accelerator(cpu=True)
    nowhere.init_trackers("nowhere")
    nowhere.log({"loss": 1.0})
    assert nowhere.trackers == []


def test_tensorboard_files_hold_scalars_texts_charts_and_the_configuration(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=tmp_path)
    accelerator.init_trackers("board", config=CONFIG, init_kwargs={"tensorboard": {"max_queue": 5}})
    accelerator.log({"loss": torch.tensor(0.5), "note": "hi", "parts": {"a": 1, "b": 2}}, step=3)
    accelerator.get_tracker("tensorboard").log_images({"img": torch.zeros(1, 3, 2, 2)}, step=3)
    accelerator.end_training()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    (point,) = events.Scalars("loss")
    assert (point.step, point.value) == (3, 0.5)
    assert events.Tags()["images"] == ["img"]
    assert any("note" in tag for tag in events.Tags()["tensors"])
    assert "inner:\n  depth: 2" in (tmp_path / "board" / "hparams.yml").read_text()
    parts = list((tmp_path / "board").glob("parts_*"))
    assert len(parts) == 2


def test_every_tracker_of_a_list_gets_everything(tmp_path: Path) -> None:
    accelerator = Accelerator(
        cpu=True, log_with=["jsonl", "tensorboard", "jsonl"], project_dir=tmp_path
    )
    accelerator.init_trackers("both")
    assert [one.name for one in accelerator.trackers] == ["jsonl", "tensorboard"]
    accelerator.log({"loss": 1.0}, log_kwargs={"jsonl": {"extra": "x"}})
    accelerator.end_training()
    assert rows_of(tmp_path / "both.jsonl")[0]["extra"] == "x"
    assert list((tmp_path / "both").glob("events.*"))


def test_all_stands_for_what_is_installed_and_can_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "comet_ml", None)  # what the import system calls absent
    assert {"csv", "jsonl", "tensorboard"} <= set(get_available_trackers())
    assert "comet_ml" not in get_available_trackers()
    assert set(get_available_trackers()) <= set(known_trackers())
    names = {one.name for one in filter_trackers("all", tmp_path)}
    assert names == set(get_available_trackers())
    without = {one.name for one in filter_trackers("all")}
    assert without == names - {"csv", "jsonl", "tensorboard"}


def test_a_missing_package_is_an_error_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """E8: a tracker that was asked for is never dropped in silence."""
    monkeypatch.setitem(sys.modules, "comet_ml", None)
    with pytest.raises(ImportError) as error:
        Accelerator(cpu=True, log_with="comet_ml")
    assert isinstance(error.value, MissingPackage)
    assert error.value.what == (
        "log_with='comet_ml' needs the package 'comet_ml', which is not installed"
    )
    assert "packages of their own" in error.value.why
    assert 'pip install "notebook-accel[comet_ml]"' in error.value.fix


def test_an_unknown_tracker_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError) as error:
        Accelerator(cpu=True, log_with="tensorbored")
    assert error.value.what == "log_with='tensorbored' is no tracker"
    assert "csv, dvclive, jsonl" in error.value.why
    assert "register_tracker_class" in error.value.fix


def test_a_tracker_of_files_without_a_directory_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        Accelerator(cpu=True, log_with="jsonl")
    assert "log_with='jsonl' needs a directory" in error.value.what
    assert "nobody said where" in error.value.why
    assert "project_dir=" in error.value.fix


def test_logging_before_the_trackers_are_open_warns_once(tmp_path: Path) -> None:
    """E8."""
    accelerator = Accelerator(cpu=True, log_with="jsonl", project_dir=tmp_path)
    with pytest.warns(UserWarning) as said:
        accelerator.log({"loss": 1.0})
        accelerator.log({"loss": 1.0})
    (warning,) = said
    assert "log() before init_trackers()" in str(warning.message)
    assert "accelerator.init_trackers(" in str(warning.message)
    assert warning.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Accelerator(cpu=True).log({"loss": 1.0})  # nobody asked for a tracker


def test_asking_for_a_tracker_that_is_not_open_is_explained(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, log_with="jsonl", project_dir=tmp_path)
    with pytest.raises(ValueError, match="no tracker is open yet"):
        accelerator.get_tracker("jsonl")
    accelerator.init_trackers("run")
    with pytest.raises(ConfigError) as error:
        accelerator.get_tracker("wandb")
    assert "no tracker 'wandb'" in error.value.what
    assert "open trackers are: jsonl" in error.value.why
    assert 'log_with="wandb"' in error.value.fix


class Mine(GeneralTracker):
    name = "mine"
    requires_logging_directory = False

    def __init__(self, run_name: str, color: str = "blue") -> None:
        super().__init__()
        self.said: list[object] = [run_name, color]

    @property
    def tracker(self) -> list[object]:
        return self.said

    @on_main_process
    def store_init_configuration(self, values: dict) -> None:
        self.said.append(values)

    @on_main_process
    def log(self, values: dict, step: int | None = None, **kwargs: object) -> None:
        self.said.append((values, step, kwargs))

    def finish(self) -> None:
        self.said.append("end")


def test_a_tracker_of_one_s_own_is_given_as_it_is() -> None:
    mine = Mine("run")
    accelerator = Accelerator(cpu=True, log_with=mine)
    accelerator.init_trackers("ignored", {"lr": 1})
    accelerator.log({"loss": torch.tensor([2.0])}, log_kwargs={"mine": {"commit": True}})
    assert accelerator.get_tracker("mine") is mine
    accelerator.end_training()
    assert mine.said == ["run", "blue", {"lr": 1}, ({"loss": 2.0}, None, {"commit": True}), "end"]


def test_a_registered_tracker_is_known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "_registered", {})
    assert register_tracker_class(Mine) is Mine
    assert "mine" in get_available_trackers()
    register_tracker_class(type("Loud", (Mine,), {"name": "LOUD"}))
    assert [one.name for one in filter_trackers(["LOUD", Kind.JSONL], ".")] == ["LOUD", "jsonl"]
    accelerator = Accelerator(cpu=True, log_with="mine")
    accelerator.init_trackers("project", init_kwargs={"mine": {"color": "red"}})
    assert accelerator.get_tracker("mine", unwrap=True) == ["project", "red"]


def test_another_package_s_entry_point_is_known_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[notebook_accel.trackers]\nout = outside_mod:Out\n")
    (tmp_path / "outside_mod.py").write_text(
        "from notebook_accel.runtime.trackers.base import GeneralTracker\n"
        "class Out(GeneralTracker):\n"
        "    name = 'out'\n    requires_logging_directory = False\n    tracker = None\n"
        "    def __init__(self, run_name): super().__init__()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert "out" in known_trackers()
    accelerator = Accelerator(cpu=True, log_with="out")
    accelerator.init_trackers("project")
    assert type(accelerator.get_tracker("out")).__name__ == "Out"


def test_a_tracker_that_lacks_something_is_refused_by_name() -> None:
    class Bare(GeneralTracker):
        name = "bare"

    for use in (Bare, lambda: register_tracker_class(Bare)):
        with pytest.raises(NotImplementedError) as error:
            use()
        assert isinstance(error.value, TrackerIncomplete)
        assert error.value.what == "Bare has no `requires_logging_directory`, no `tracker`"
        assert "found by its name" in error.value.why
        assert "property `tracker`" in error.value.fix


def test_a_blank_tracker_takes_every_call() -> None:
    blank = BlankTracker()
    assert blank.log({"a": 1}, step=1) is None
    assert blank.log_images({"a": 1}) is None
    assert not hasattr(blank, "__iter__")


def test_numbers_are_whole_when_a_script_ends_without_a_word(tmp_path: Path) -> None:
    script = (
        "from notebook_accel import Accelerator\n"
        "from notebook_accel.runtime.trackers.base import GeneralTracker\n"
        "class T(GeneralTracker):\n"
        "    name = 't'; requires_logging_directory = False; tracker = None\n"
        "    def finish(self): print('finished')\n"
        "a = Accelerator(cpu=True, log_with=T())\n"
        "a.init_trackers('p'); a.init_trackers('p')\n"
        "raise ValueError('the end')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["finished", "finished"]  # opened twice, closed twice
    assert "ValueError: the end" in done.stderr

"""A launch that is told by a file, a RunConfig, a picker or the environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from notebook_accel import (
    Accelerator,
    ConfigError,
    DevicePicker,
    LaunchPicker,
    PrecisionPicker,
    RunConfig,
    notebook_launcher,
)
from notebook_accel.config.handlers import Handlers
from notebook_accel.config.strategy import Ways, chosen_strategy
from notebook_accel.errors import NotHere
from notebook_accel.launch.basic_config import write_basic_config

ONE_FILE = """\
compute_environment: LOCAL_MACHINE
deepspeed_config:
  gradient_accumulation_steps: 3
distributed_type: MULTI_CPU
enable_cpu_affinity: true
mixed_precision: no
num_machines: 1
num_processes: 2
"""


def told() -> tuple[int, str, int]:
    accelerator = Accelerator()
    return (
        accelerator.num_processes,
        accelerator.mixed_precision,
        accelerator.gradient_accumulation_steps,
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(ONE_FILE)
    return path


class Picker:
    def __init__(self, config: RunConfig) -> None:
        self.run_config = config


def test_a_file_says_what_the_cell_does_not(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = notebook_launcher(told, config=file)
    assert list(run) == [(2, "no", 3), (2, "no", 3)]
    said = capfd.readouterr().out
    assert (
        f"note: from {file}: device=cpu, num_processes=2, gradient_accumulation_steps=3, "
        "enable_cpu_affinity=yes" in said
    )
    assert "note: enable_cpu_affinity changes nothing in this version" in said


def test_arguments_of_the_call_beat_the_file_and_the_environment(file: Path) -> None:
    run = notebook_launcher(
        told,
        num_processes=1,
        mixed_precision="bf16",
        config=str(file),
        env={"ACCELERATE_MIXED_PRECISION": "fp16"},
    )
    assert list(run) == [(1, "bf16", 3)]


def test_the_environment_beats_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "5")
    assert notebook_launcher(told, config=file)[0] == (2, "no", 5)
    assert "note: from the environment: gradient_accumulation_steps=5" in capfd.readouterr().out


def test_a_variable_set_in_the_function_beats_the_file_and_no_argument(file: Path) -> None:
    def late() -> tuple[int, str]:
        os.environ["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = "7"
        os.environ["ACCELERATE_MIXED_PRECISION"] = "fp16"
        accelerator = Accelerator()
        return accelerator.gradient_accumulation_steps, accelerator.mixed_precision

    run = notebook_launcher(late, num_processes=1, mixed_precision="bf16", config=file)
    assert run[0] == (7, "bf16")


@pytest.mark.parametrize("wrap", [lambda config: config, Picker])
def test_a_run_config_and_a_picker_are_asked_alike(wrap: Any) -> None:
    config = RunConfig(num_processes=2, device="cpu", gradient_accumulation_steps=4)
    assert list(notebook_launcher(told, config=wrap(config))) == [(2, "no", 4)] * 2


def test_the_default_file_counts_and_is_named(
    file: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("NOTEBOOK_ACCEL_CONFIG", str(file))
    assert notebook_launcher(told, num_processes=1)[0] == (1, "no", 3)
    assert f"note: from {file}: " in capfd.readouterr().out
    monkeypatch.delenv("NOTEBOOK_ACCEL_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nothing"))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (tmp_path / "accelerate").mkdir()
    file.rename(tmp_path / "accelerate" / "default_config.yaml")
    assert notebook_launcher(told, start_method="inline", num_processes=1)[0] == (1, "no", 3)
    assert "default_config.yaml (Accelerate's default file): " in capfd.readouterr().out


def test_processes_of_a_file_are_those_of_all_machines(file: Path) -> None:
    file.write_text("num_machines: 2\nnum_processes: 3\ndevice: cpu\n")
    with pytest.raises(ConfigError) as error:
        notebook_launcher(told, config=file)
    assert error.value.what == f"{file}, line 2: num_processes: 3 on 2 machines"
    assert error.value.fix == "write num_processes: 4"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("mixed_precision: bf17\n", "line 1: mixed_precision: bf17 is not known"),
        ("\nnum_process: 2\n", "line 2: there is no setting num_process"),
        ("mixed_precision: fp9\n", "line 1: mixed_precision: fp9 is not known"),
    ],
)
def test_a_file_that_cannot_be_is_refused_before_anything_starts(
    file: Path, text: str, what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        notebook_launcher(told, config=file)
    assert what in str(error.value)
    assert "Launching" not in capfd.readouterr().out


def test_a_default_file_that_stands_in_the_way_can_be_gone_around(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTEBOOK_ACCEL_CONFIG", str(file))
    for text in (
        "mixed_precision: [\n",
        "compute_environment: AMAZON_SAGEMAKER\n",
        "device: cdua\n",
    ):
        file.write_text(text)
        with pytest.raises((ConfigError, NotHere)) as error:
            notebook_launcher(told)
        assert "or pass config=RunConfig() to launch without this file" in error.value.fix
        with pytest.raises((ConfigError, NotHere)) as named:
            notebook_launcher(told, config=file)
        assert "RunConfig()" not in named.value.fix
    assert notebook_launcher(told, num_processes=1, config=RunConfig())[0] == (1, "no", 1)


def test_a_misspelt_variable_is_noted(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISON", "bf16")
    notebook_launcher(told, start_method="inline", num_processes=1)
    said = capfd.readouterr().out
    assert (
        "ACCELERATE_MIXED_PRECISON is not known; did you mean ACCELERATE_MIXED_PRECISION?" in said
    )


def test_threads_of_each_rank_can_be_told(file: Path) -> None:
    def threads() -> tuple[str, int]:
        import torch

        return os.environ["OMP_NUM_THREADS"], torch.get_num_threads()

    config = RunConfig(num_processes=1, device="cpu", num_cpu_threads_per_process=3)
    assert notebook_launcher(threads, config=config)[0] == ("3", 3)


def test_what_is_not_built_yet_is_refused_by_the_line_that_asks_for_it(file: Path) -> None:
    file.write_text("compute_environment: AMAZON_SAGEMAKER\n")
    with pytest.raises(NotHere) as error:
        notebook_launcher(told, config=file)
    assert f"compute_environment='AMAZON_SAGEMAKER' (from file {file}, line 1)" in error.value.what


def test_a_file_of_gpus_on_a_machine_without_is_named_in_the_error(file: Path) -> None:
    file.write_text("distributed_type: MULTI_GPU\nnum_processes: 2\ngpu_ids: 99,98\n")
    with pytest.raises(ConfigError) as error:
        notebook_launcher(told, config=file)
    assert error.value.what.startswith("device=[99, 98]: ")
    assert f"(from file {file}, line 3)" in error.value.what


def test_another_config_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        notebook_launcher(told, config=5)
    assert error.value.what == "config=5 is no configuration"
    assert "RunConfig(num_processes=2)" in error.value.fix


@pytest.mark.parametrize("kind", [LaunchPicker, DevicePicker, PrecisionPicker, RunConfig])
def test_a_class_of_configs_is_answered_with_how_to_make_one(kind: type) -> None:
    with pytest.raises(ConfigError) as error:
        notebook_launcher(told, config=kind)
    assert error.value.what == f"config={kind.__name__} is a class"
    assert error.value.fix == f"make one: config={kind.__name__}()"
    with pytest.raises(ConfigError, match="is no configuration"):
        notebook_launcher(told, config=dict)


def test_a_basic_config_takes_this_machine_and_spares_a_file_that_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "config.yaml"
    assert write_basic_config("bf16", path) == path
    before = path.read_text()
    assert "mixed_precision: bf16" in before and "num_processes: " in before
    assert write_basic_config(save_location=path) is False
    assert path.read_text() == before
    assert "stays as it is" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="mixed_precision='fp1' is not known"):
        write_basic_config("fp1", tmp_path / "other.yaml")


@pytest.mark.parametrize(
    ("word", "wish"),
    [
        ("tensor", "TensorParallel(size=2)"),
        ("pipeline", "Pipeline(stages=2)"),
        ("sequence", "SequenceParallel(size=2)"),
    ],
)
def test_a_name_of_a_strategy_that_needs_a_size_is_answered_with_its_value(
    word: str, wish: str
) -> None:
    with pytest.raises(ConfigError, match=f"strategy='{word}' does not say how many") as launch:
        notebook_launcher(told, num_processes=2, device="cpu", strategy=word)
    assert launch.value.fix == f"write strategy={wish}"
    with pytest.raises(ConfigError, match=f"strategy='{word}' does not say how many"):
        chosen_strategy(Ways(word), Handlers(), RunConfig(), 2)

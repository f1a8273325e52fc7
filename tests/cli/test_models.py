"""``estimate-memory`` and ``merge-weights`` as a person types them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from notebook_accel.cli.estimate_memory import size
from tests.cli.typing_in import typed

MODEL = """
from torch import nn
def make():
    return nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
"""


def test_estimate_memory_prints_a_table_of_80_columns_and_imports_no_torch_itself(
    tmp_path: Path,
) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    words = ("estimate-memory", "net.py:make", "--input_shape", "10", "--batch_size", "8")
    done = typed(*words, cwd=tmp_path, then="sys.exit(code or 3 * ('torch' in sys.modules))")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "Sequential: 325 parameters" in done.stdout
    for row in ("float32", "int4", "single device", "DDP", "FSDP", "FSDP, gradients"):
        assert any(line.startswith(f"{row} ") for line in done.stdout.splitlines()), row


def test_estimate_memory_as_json_gives_bytes(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    words = ("estimate-memory", "net.py:make", "--json", "--dtypes", "float32", "int4")
    done = typed(*words, "--num_processes", "1", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert found["weights"]["float32"] == {"layer": 880, "total": 1300, "training": 5200}
    assert list(found["weights"]) == ["float32", "int4"]
    row = found["training"]["1"][0]
    assert (row["weights"], row["optimizer"], row["activations"]) == (1300, 2600 + 4 * 4, 0)
    assert found["sizes"]["activations"] is None and "--input_shape" in found["sizes"]["why"]


def test_a_total_without_activations_says_so_and_a_shape_that_does_not_fit_fails(
    tmp_path: Path,
) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    done = typed("estimate-memory", "net.py:make", "--input_shape", "3x224", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    row = next(line for line in lines if line.startswith("single device "))
    assert row.split("B")[-1].strip() == "+ ?" and " ? " in row
    said = "?: activations are unknown, and no total has them: its forward pass failed on 1 x 3 x"
    assert said in " ".join(done.stdout.split())
    done = typed("estimate-memory", "net.py:make", cwd=tmp_path)
    assert done.returncode == 0 and "no input was given" in done.stdout


def test_the_name_of_the_largest_layer_cannot_be_taken_for_a_size(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    done = typed("estimate-memory", "net.py:make", cwd=tmp_path)
    assert "\nlargest layer: '0', 880 B\n" in done.stdout


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def make():\n    return nothing\n", "NameError: name 'nothing' is not defined"),
        ("def make():\n    return len(3)\n", "TypeError: object of type 'int' has no len()"),
        ("import os\nos.absent()\n", "AttributeError: module 'os' has no attribute 'absent'"),
        ("import os\ndef make(:\n", "SyntaxError: "),
    ],
)
def test_an_error_of_the_persons_function_is_told_by_its_line(
    tmp_path: Path, source: str, said: str
) -> None:
    (tmp_path / "net.py").write_text(source)
    done = typed("estimate-memory", "net.py:make", cwd=tmp_path)
    assert done.returncode == 2
    assert f" raised {said}" in done.stderr and f"{os.sep}net.py:2" in done.stderr
    assert source.splitlines()[1].strip() in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) == 3


def test_a_name_that_is_no_model_is_a_message_and_exit_code_2() -> None:
    done = typed("estimate-memory", "absent.py:make")
    assert done.returncode == 2
    assert done.stderr.startswith("ConfigError: there is no file absent.py\n  why: ")
    done = typed("estimate-memory", "x:y", "--input_shape", "three")
    assert "'three' is no shape: write for example 3,224,224" in done.stderr


def test_merge_weights_takes_accelerates_arguments(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    save_file({"w": torch.ones(2)}, tmp_path / "saved/model.safetensors")
    done = typed("merge-weights", "saved", "out", "--remove_checkpoint_dir", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "out: 1 tensors, 8 B\nremoved saved\n"
    assert load_file(tmp_path / "out/model.safetensors")["w"].tolist() == [1, 1]
    assert not (tmp_path / "saved").exists()
    done = typed("merge-weights", "saved", "out", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("CheckpointError: there is no checkpoint folder saved\n")


def test_merge_weights_makes_no_folder_with_the_name_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    save_file({"w": torch.ones(2)}, tmp_path / "saved/model.safetensors")
    done = typed("merge-weights", "saved", "merged.txt", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("ConfigError: merged.txt is neither a folder nor a file of")
    assert "write merged.safetensors, or merged.txt/ for a folder" in done.stderr
    assert not (tmp_path / "merged.txt").exists()
    done = typed("merge-weights", "saved", "merged.txt/", cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "merged.txt").is_dir() and done.stderr == ""
    again = typed("merge-weights", "saved", "merged.txt/", cwd=tmp_path)
    assert again.returncode == 0
    assert again.stderr == "note: merged.txt was there already; its weights were replaced\n"


def test_sizes_are_written_in_three_digits() -> None:
    assert [size(n) for n in (0, 999, 1024, 12_345_678, 417 * 2**20, 2**41)] == [
        "0 B", "999 B", "1.00 KiB", "11.8 MiB", "417 MiB", "2.00 TiB"
    ]  # fmt: skip

"""Models by their names, as ``estimate-memory`` takes them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from notebook_accel.errors import ConfigError, MissingPackage
from notebook_accel.strategies.estimate import report
from notebook_accel.strategies.named import build


def told(name: str, shape: list[int] | None = None) -> dict:
    return report(name, None, False, shape, 4, None, "no", "adamw", [1, 2])


def test_functions_in_files_and_modules_name_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "nets.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def make(): return nn.Linear(10, 2)\n"
        "def both(): return nn.Embedding(9, 4), torch.zeros(4, 3, dtype=torch.long)\n"
        "def needy(size): return nn.Linear(size, 2)\n"
        "def odd(): return 7\n"
        "def peeks(): return nn.Linear(int(torch.ones(1).item()), 2)\n"
    )
    (tmp_path / "empty.py").write_text("")
    assert told("nets.py:make", [10])["sizes"]["activations"] == 4 * 4 * 10
    assert told("nets:make")["sizes"]["num_parameters"] == 22
    assert told("torch.nn:Identity")["sizes"]["num_parameters"] == 0
    with_input = told("nets.py:both")
    assert with_input["input"] == "4 x 3"
    assert set(with_input["training"]) == {"1", "2"}
    assert build("nets.py:peeks", None, False)[0].in_features == 1
    for name, said in {
        "nets.py": "nets.py: which model\\?(.|\n)*it has make, both",
        "nets.py:mak": "nets.py has no function or class 'mak'(.|\n)*nets.py:make",
        "empty.py:make": "no function or class 'make'(.|\n)*why: nothing is defined in it",
        "absent.py:make": "there is no file absent.py",
        "absent_module:make": "there is no module absent_module",
        "nets.py:needy": "nets.py:needy cannot be called without arguments",
        "nets.py:odd": "nets.py:odd made an int",
    }.items():
        with pytest.raises(ConfigError, match=said):
            told(name)


def test_a_configuration_of_transformers_is_built_and_run_in_a_folder(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        vocab_size=100,
    )  # fmt: skip
    config.architectures = ["BertForMaskedLM"]
    config.save_pretrained(tmp_path)
    found = report(str(tmp_path), None, False, None, 3, 7, "bf16", "adamw", [2])
    assert (found["sizes"]["name"], found["input"]) == ("BertForMaskedLM", "3 x 7")
    assert found["sizes"]["activations"] > 0
    with pytest.raises(ConfigError, match=r"absent/model is no model here(.|\n)*download it first"):
        report("absent/model", None, False, None, 1, None, "no", "adamw", [1])
    (tmp_path / "config.json").write_text('{"model_type": "no-such-kind"}')
    with pytest.raises(ConfigError, match=r"mend its config\.json"):
        report(str(tmp_path), None, False, None, 1, None, "no", "adamw", [1])


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingPackage, match=r"timm is not installed(.|\n)*pip install timm"):
        report("resnet18", "timm", False, None, 1, None, "no", "adamw", [1])

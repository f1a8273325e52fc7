"""Sizes of models and of their training: against numbers worked out by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from notebook_accel.errors import ConfigError, MissingPackage
from notebook_accel.strategies.budget import Sizes, budgets
from notebook_accel.strategies.estimate import build, measure, report

MLP = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
NUMBERS = 10 * 20 + 20 + 20 * 5 + 5


def plain(num_parameters: int = 1000, activations: int = 64) -> Sizes:
    size = 4 * num_parameters
    return Sizes(
        "Net", num_parameters, num_parameters, size, size, size, size, "0", size, size, activations
    )


def test_one_process_with_adam_holds_sixteen_bytes_a_parameter() -> None:
    (one,) = budgets(plain(), 1, "no", "adamw")
    assert one.strategy == "one process"
    assert (one.weights, one.gradients, one.optimizer, one.other) == (4000, 4000, 8000, 0)
    assert one.total == 16_000 + 64


def test_autocast_adds_half_precision_copies_and_an_optimizer_without_state_nothing() -> None:
    (one,) = budgets(plain(), 1, "bf16", "sgd")
    assert (one.optimizer, one.other) == (0, 2000)


def test_each_strategy_shares_what_it_cuts() -> None:
    by_name = {one.strategy: one for one in budgets(plain(), 4, "no", "adamw")}
    assert by_name["ddp"].other == 4000  # the buckets
    full = by_name["fsdp, full"]
    assert (full.weights, full.gradients, full.optimizer) == (1000, 1000, 2000)
    stages = [by_name[f"zero {stage}"] for stage in (1, 2, 3)]
    assert [one.weights for one in stages] == [4000, 4000, 1000]
    assert [one.gradients for one in stages] == [4000, 1000, 1000]
    assert [one.optimizer for one in stages] == [2000, 2000, 2000]
    assert {one.activations for one in by_name.values()} == {64}


def test_zero_keeps_half_precision_weights_and_float32_ones_with_the_states() -> None:
    """Rajbhandari et al. 2020, section 3.1: 2 + 2 + 12 bytes a parameter, K=12."""
    by_name = {one.strategy: one for one in budgets(plain(), 2, "fp16", "adam")}
    zero = by_name["zero 1"]
    assert (zero.weights, zero.gradients, zero.optimizer) == (2000, 2000, 12_000 // 2)


def test_an_unknown_optimizer_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"optimizer='adamv' is not known(.|\n)*'adamw'"):
        budgets(plain(), 1, "no", "adamv")


def test_a_forward_pass_on_fakes_tells_what_it_would_keep() -> None:
    """Kept are the input (8 x 10) and what comes out of the ReLU (8 x 20), in float32."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
    sizes = measure(model, lambda: torch.zeros(8, 10), "no")
    assert sizes.num_parameters == sizes.num_trainable == NUMBERS
    assert sizes.weights == sizes.shared == 4 * NUMBERS
    assert (sizes.layer_name, sizes.layer) == ("0", 4 * 220)
    assert sizes.activations == 4 * (8 * 10 + 8 * 20)


def test_in_half_precision_activations_halve_and_weight_copies_are_not_among_them() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
    sizes = measure(model, lambda: torch.zeros(8, 10), "bf16")
    assert sizes.activations == 2 * (8 * 10 + 8 * 20)


def test_tied_parameters_count_once_and_frozen_ones_do_not_learn() -> None:
    model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50, bias=False))
    model[1].weight = model[0].weight
    assert measure(model, None, "no").num_parameters == 400
    model.requires_grad_(False)
    assert measure(model, None, "no").num_trainable == 0


def test_a_model_that_fails_on_the_input_is_still_counted() -> None:
    sizes = measure(nn.Linear(10, 2), lambda: torch.zeros(3, 7), "no")
    assert sizes.num_parameters == 22 and sizes.activations is None
    assert "its forward pass failed on 3 x 7: " in sizes.why


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
        "absent.py:make": "there is no file absent.py",
        "absent_module:make": "there is no module absent_module",
        "nets.py:needy": "nets.py:needy cannot be called without arguments",
        "nets.py:odd": "nets.py:odd made a int",
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

"""Layers in 8 bits: which ones, what they stay, what is said of them. Slow: they need torchao."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from notebook_accel import FSDP, Accelerator, Pipeline, notebook_launcher
from notebook_accel.config.fp8 import AORecipeKwargs
from notebook_accel.config.installed import is_installed
from notebook_accel.errors import ConfigError
from notebook_accel.strategies.fp8 import EightBits, choose_layers, say_how_fp8_runs
from notebook_accel.utils import (
    convert_model_to_fp8_ao,
    filter_first_and_last_linear_layers,
    has_ao_layers,
    has_transformer_engine_layers,
)

needs_torchao = pytest.mark.skipif(
    not is_installed("torchao"), reason="needs torchao: pip install 'notebook-accel[fp8]'"
)
CPU = torch.device("cpu")


class Own(nn.Linear):
    """A linear layer with a class of its own."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(16, 32)
        self.wide = nn.Linear(32, 32)
        self.odd = nn.Linear(32, 24)
        self.back = nn.Linear(24, 32)
        self.own = Own(32, 32)
        self.words = nn.Embedding(64, 32)
        self.tied = nn.Linear(32, 64, bias=False)
        self.tied.weight = self.words.weight
        self.last = nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.back(self.odd(self.wide(self.enter(x)).tanh()))
        return self.last(self.tied(self.own(x)))


LEFT = {
    "enter": "first",
    "odd": "32 x 24, not multiples of 16",
    "back": "24 x 32, not multiples of 16",
    "own": "an Own",
    "tied": "shares its weight",
    "last": "last",
}


def test_the_usual_layers_are_chosen_and_the_others_have_a_reason() -> None:
    assert choose_layers(Net()) == (["wide"], LEFT)
    assert choose_layers(nn.Linear(16, 16)) == ([], {"": "first"})
    chosen, left = choose_layers(Net(), lambda layer, name: name in ("enter", "own", "tied"))
    assert chosen == ["enter"]
    assert left["wide"] == "not chosen" and left["own"] == "an Own"
    assert left["tied"] == "shares its weight"


def test_accelerates_filter_knows_the_model_or_at_least_sizes() -> None:
    model = Net()
    chosen = [n for n, _ in model.named_modules() if filter_first_and_last_linear_layers(model, n)]
    assert chosen == ["wide"]
    assert filter_first_and_last_linear_layers(model.enter, "enter")
    assert not filter_first_and_last_linear_layers(model.odd, "odd")
    assert not has_ao_layers(model) and not has_transformer_engine_layers(model)


def test_devices_without_8_bit_numbers_are_refused() -> None:
    with pytest.raises(ConfigError) as error:
        EightBits(AORecipeKwargs(), torch.device("mps"))
    assert error.value.what == "mixed_precision='fp8' on mps"
    assert "no 8-bit floating-point numbers" in error.value.why
    assert "bf16" in error.value.fix


# ── with torchao ──────────────────────────────────────────────────────────────────────────────


def prepared(model: nn.Module, precision: str = "fp8", **recipe: Any) -> tuple[Any, nn.Module]:
    handlers = [AORecipeKwargs(**recipe)] if recipe else []
    accelerator = Accelerator(cpu=True, mixed_precision=precision, kwargs_handlers=handlers)
    return accelerator, accelerator.prepare(model)


@pytest.mark.slow
@needs_torchao
def test_a_layer_stays_the_persons_own_object() -> None:
    model, seen = Net(), []
    layer, weight = model.wide, model.wide.weight
    names = list(model.state_dict())
    handle = layer.register_forward_hook(lambda module, inputs, output: seen.append(output))
    accelerator, model = prepared(model)
    assert accelerator.mixed_precision == "fp8" and accelerator.fp8_backend == "AO"
    assert model.wide is layer and layer.weight is weight
    assert has_ao_layers(model) and isinstance(layer, nn.Linear)
    assert list(accelerator.get_state_dict(model)) == names
    output = model(torch.randn(4, 16))
    assert output.dtype == torch.float32 and len(seen) == 1
    assert type(model.own) is Own and type(model.enter) is nn.Linear
    handle.remove()
    for traveled in (pickle.loads(pickle.dumps(model)), copy.deepcopy(layer)):
        assert not has_ao_layers(traveled)
    again = pickle.loads(pickle.dumps(model))
    assert type(again.wide) is nn.Linear and torch.equal(again.wide.weight, weight)
    again.wide(torch.randn(1, 32))


@pytest.mark.slow
@needs_torchao
def test_a_cell_run_again_in_another_precision_has_plain_layers() -> None:
    model = Net()
    before = dict(vars(model.wide))
    for precision in ("fp8", "fp8", "no", "fp8", "bf16"):
        _, model = prepared(model, precision)
        assert has_ao_layers(model) == (precision == "fp8")
        model(torch.randn(4, 16)).sum().backward()
    assert type(model.wide) is nn.Linear and vars(model.wide).keys() == before.keys()


@pytest.mark.slow
@needs_torchao
def test_explain_says_which_layers_and_that_they_are_emulated(capsys: Any) -> None:
    say_how_fp8_runs.cache_clear()
    accelerator, _ = prepared(Net())
    accelerator.explain()
    said = capsys.readouterr().out
    assert (
        "note: fp8 on this cpu is emulated: right numbers, no speed (native from compute "
        "capability 8.9)"
    ) in said
    assert (
        "1 of 7 linear layers in fp8 (emulated: right numbers, no speed); not in fp8: enter "
        "(first), odd (32 x 24, not multiples of 16), back (24 x 32, not multiples of 16), own "
        "(an Own) and 2 more"
    ) in said
    prepared(nn.Sequential(nn.Linear(16, 16)))
    assert (
        "note: fp8 in Sequential: 0 of 1 linear layers in fp8 (emulated: right numbers, no "
        "speed); not in fp8: 0 (first); all is bf16"
    ) in capsys.readouterr().out


@pytest.mark.slow
@needs_torchao
def test_a_filter_of_the_persons_chooses() -> None:
    _, model = prepared(Net(), module_filter_func=lambda layer, name: name in ("enter", "odd"))
    kinds = [name for name, one in model.named_modules() if has_ao_layers(one) and name]
    assert kinds == ["enter", "odd"]
    model(torch.randn(3, 16)).sum().backward()  # padded: neither 24 nor 3 is a multiple of 16
    by_hand = convert_model_to_fp8_ao(Net())
    assert [n for n, one in by_hand.named_modules() if has_ao_layers(one) and n] == ["wide"]
    all_of_it = convert_model_to_fp8_ao(Net(), module_filter_func=lambda layer, name: True)
    assert has_ao_layers(all_of_it.enter) and not has_ao_layers(all_of_it.own)


def losses(convert: Callable[[nn.Module], Any], rate: float = 0.1) -> torch.Tensor:
    """Train with SGD on 64 rows."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 16)
    )
    convert(model)
    x, y = torch.randn(64, 16), torch.randn(64, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    found = []
    for _ in range(10):
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return torch.tensor(found)


@pytest.mark.slow
@needs_torchao
def test_the_kernel_computes_what_its_emulation_does() -> None:
    """A CPU has the kernel too, slow as it is: the emulation is no model of it but its twin."""
    from torchao.float8 import Float8LinearConfig

    def converted(**how: Any) -> torch.Tensor:
        config = Float8LinearConfig(round_scales_to_power_of_2=True, pad_inner_dim=True, **how)
        return losses(lambda model: convert_model_to_fp8_ao(model, config))

    emulated, real = converted(emulate=True), converted(emulate=False)
    assert torch.allclose(emulated, real, atol=1e-6)
    plain = losses(lambda model: model)
    assert torch.allclose(emulated, plain, atol=5e-3)
    assert not torch.allclose(emulated, plain, atol=1e-6)  # or nothing was in 8 bits


def refusals() -> list[str]:
    """What is said of a pipeline in fp8, and of shards that were gathered in 8 bits before."""
    told = []
    for wish, precision in ((Pipeline(), "fp8"), (FSDP(), "no")):
        model = Net()
        if precision == "no":
            model = Accelerator(cpu=True, mixed_precision="fp8", strategy=FSDP()).prepare(model)
        try:
            accelerator = Accelerator(cpu=True, mixed_precision=precision, strategy=wish)
            accelerator.prepare(model)
        except ConfigError as error:
            told.append(str(error))
    return told


@pytest.mark.slow
@needs_torchao
def test_what_cannot_be_in_fp8_is_refused_on_every_rank() -> None:
    run = notebook_launcher(refusals, (), 2, device="cpu")
    assert run[0] == run[1]
    pipeline, shards = run[0]
    assert "Pipeline() with mixed_precision='fp8'" in pipeline
    assert "it is layers that compute in 8 bits" in pipeline
    assert "write mixed_precision='bf16', or strategy=FSDP()" in pipeline
    assert "a FSDPNet that was sharded in fp8 is prepared in another precision" in shards
    assert "gathered in 8 bits from now on" in shards
    assert "build the model anew" in shards


@pytest.mark.slow
@needs_torchao
def test_a_recipe_of_torchaos_is_taken_and_emulated_where_it_must_be() -> None:
    from torchao.float8 import Float8LinearConfig

    for name in ("tensorwise", "rowwise"):
        config = Float8LinearConfig.from_recipe_name(name)
        _, model = prepared(Net(), config=config)
        assert model.wide.config.emulate and not config.emulate
        assert model.wide.config.cast_config_input == config.cast_config_input
        model(torch.randn(4, 16)).sum().backward()

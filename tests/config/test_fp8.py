"""The recipes of fp8, and what is said where nothing here can compute it."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from notebook_accel import Accelerator, DeepSpeed, notebook_launcher
from notebook_accel.config import fp8
from notebook_accel.config.deepspeed_filled import filled
from notebook_accel.config.fp8 import (
    AORecipeKwargs,
    FP8RecipeKwargs,
    MSAMPRecipeKwargs,
    TERecipeKwargs,
    chosen_recipe,
    refuse_backend,
    refuse_without_library,
)
from notebook_accel.config.handlers import Handlers
from notebook_accel.config.installed import is_installed
from notebook_accel.config.resolve import RunConfig, resolve
from notebook_accel.errors import ConfigError, MissingPackage, NotHere
from notebook_accel.utils import (
    apply_fp8_autowrap,
    contextual_fp8_autocast,
    convert_model,
    convert_model_to_fp8_ao,
    has_transformer_engine_layers,
)

FP8 = RunConfig(mixed_precision="fp8")
without_torchao = pytest.mark.skipif(is_installed("torchao"), reason="torchao is installed here")


class Numbers:
    """Two fields of torchao's Float8LinearConfig."""

    pad_inner_dim = False
    enable_fsdp_float8_all_gather = False


def test_recipes_are_read_from_arguments_then_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert AORecipeKwargs().pad_inner_dim and AORecipeKwargs().enable_fsdp_float8_all_gather
    monkeypatch.setenv("ACCELERATE_FP8_PAD_INNER_DIM", "no")
    monkeypatch.setenv("ACCELERATE_FP8_FORMAT", "e4m3")
    monkeypatch.setenv("ACCELERATE_FP8_MARGIN", "2")
    monkeypatch.setenv("ACCELERATE_FP8_OPT_LEVEL", "O1")
    assert AORecipeKwargs().pad_inner_dim is False
    assert AORecipeKwargs(pad_inner_dim=True).pad_inner_dim
    recipe = TERecipeKwargs(margin=1)
    assert (recipe.fp8_format, recipe.margin, recipe.interval) == ("E4M3", 1, 1)
    assert (MSAMPRecipeKwargs().opt_level, FP8RecipeKwargs().opt_level) == ("O1", "O1")
    assert FP8RecipeKwargs(backend="te").backend == "TE"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: TERecipeKwargs(fp8_format="E3M4"), "format='E3M4'"),
        (lambda: TERecipeKwargs(amax_compute_algo="mean"), "amax_compute_algo='mean'"),
        (lambda: MSAMPRecipeKwargs(opt_level="O3"), "opt_level='O3'"),
        (lambda: FP8RecipeKwargs(backend="apex"), "backend='apex'"),
    ],
)
def test_a_word_that_no_library_has_is_refused_with_the_choices(make: Any, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    assert says in error.value.what


def test_a_config_and_a_field_of_it_must_agree() -> None:
    assert AORecipeKwargs(config=Numbers(), pad_inner_dim=False).pad_inner_dim is False
    with pytest.raises(ConfigError) as error:
        AORecipeKwargs(config=Numbers(), pad_inner_dim=True)
    assert error.value.what == "AORecipeKwargs(pad_inner_dim=True) with a config that has " + (
        "pad_inner_dim=False"
    )
    assert "which of them counts" in error.value.why
    assert "Float8LinearConfig(pad_inner_dim=True)" in error.value.fix


def test_two_recipes_are_refused_and_one_lies_ready_in_other_precisions() -> None:
    handlers = Handlers.of([AORecipeKwargs(), TERecipeKwargs()])
    with pytest.raises(ConfigError) as error:
        chosen_recipe(handlers, FP8)
    assert error.value.what == "kwargs_handlers has AORecipeKwargs and TERecipeKwargs"
    assert "nobody could say which" in error.value.why
    assert error.value.fix == "leave one of them out"
    assert chosen_recipe(handlers, RunConfig(mixed_precision="bf16")) is None
    assert Accelerator(cpu=True, kwargs_handlers=[TERecipeKwargs()]).fp8_backend is None


@pytest.mark.parametrize(
    ("recipe", "config", "name"),
    [
        (TERecipeKwargs(), FP8, "TransformerEngine"),
        (FP8RecipeKwargs(backend="te"), FP8, "TransformerEngine"),
        (MSAMPRecipeKwargs(), FP8, "MS-AMP"),
        (None, FP8.but(fp8_backend="te"), "TransformerEngine"),
        (FP8RecipeKwargs(), FP8.but(fp8_backend="msamp"), "MS-AMP"),
    ],
)
def test_other_libraries_are_known_and_the_way_through_torchao_is_named(
    recipe: Any, config: RunConfig, name: str
) -> None:
    with pytest.raises(MissingPackage) as error:
        chosen_recipe(Handlers.of([] if recipe is None else [recipe]), config)
    assert error.value.what == f"mixed_precision='fp8' through {name}, which is not installed"
    assert "keep scales" in error.value.why
    assert "fp8_backend='ao'" in error.value.fix and "notebook-accel[fp8]" in error.value.fix


def test_a_library_that_is_installed_and_not_used_is_refused_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(fp8._LIBRARIES, "te", "torch")  # something that is installed
    with pytest.raises(NotHere) as error:
        refuse_backend("te")
    assert "through TransformerEngine asks for what is not here" in error.value.what
    assert "through torchao only" in error.value.why
    assert "AORecipeKwargs()" in error.value.fix


def test_deepspeed_has_no_8_bits_and_says_so() -> None:
    with pytest.raises(ConfigError) as error:
        filled(DeepSpeed(), "fp8", {})
    assert error.value.what == "strategy=DeepSpeed(...) with mixed_precision='fp8'"
    assert "has none of 8 bits" in error.value.why
    assert "bf16" in error.value.fix and "strategy=FSDP()" in error.value.fix


def test_transformer_engines_functions_say_what_computes_in_their_place() -> None:
    model = nn.Linear(16, 16)
    assert not has_transformer_engine_layers(model)
    calls = [
        lambda: convert_model(model),
        lambda: apply_fp8_autowrap(model, TERecipeKwargs()),
        lambda: contextual_fp8_autocast(model.forward, None),
    ]
    for call in calls:
        with pytest.raises(MissingPackage) as error:
            call()
        assert "TransformerEngine, which is not installed" in error.value.what
        assert "fp8_backend='ao'" in error.value.fix


@without_torchao
def test_without_torchao_every_way_to_ask_is_refused_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    asks = [
        lambda: Accelerator(cpu=True, mixed_precision="fp8"),
        lambda: Accelerator(cpu=True, mixed_precision="fp8", kwargs_handlers=[AORecipeKwargs()]),
        lambda: notebook_launcher(print, num_processes=1, device="cpu", mixed_precision="fp8"),
        lambda: notebook_launcher(print, num_processes=1, device="cpu", config=FP8),
        lambda: refuse_without_library(FP8),
        lambda: convert_model_to_fp8_ao(nn.Linear(16, 16)),
    ]
    for ask in asks:
        with pytest.raises(MissingPackage) as error:
            ask()
        assert error.value.what == ("mixed_precision='fp8' through torchao, which is not installed")
        assert "8-bit numbers" in error.value.why
        assert "pip install 'notebook-accel[fp8]'" in error.value.fix
        assert "mixed_precision='bf16'" in error.value.fix
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp8")
    with pytest.raises(MissingPackage):
        refuse_without_library(resolve({}))

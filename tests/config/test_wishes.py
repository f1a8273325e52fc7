"""Wishes as values: what can be said in them, and what they are as keys."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

import pytest

from notebook_accel.config.deepspeed import DeepSpeed
from notebook_accel.config.megatron import Megatron
from notebook_accel.config.schema import LaunchSettings
from notebook_accel.config.sequence import SequenceParallel
from notebook_accel.config.wishes import DDP, FSDP, Pipeline, SingleDevice, Strategy, TensorParallel
from notebook_accel.errors import ConfigError

WITH_DICTS_AND_LISTS = {
    "ddp": lambda: DDP(comm_hook="power_sgd", comm_state_option={"matrix_approximation_rank": 2}),
    "fsdp": lambda: FSDP(ignored_modules=["head"]),
    "tensor": lambda: TensorParallel(plan={"blocks.*.up": "colwise"}),
    "pipeline": lambda: Pipeline(inside=TensorParallel(plan={"up": "colwise"})),
    "sequence": lambda: SequenceParallel(pad={"input_ids": 0}),
    "deepspeed": lambda: DeepSpeed(config={"zero_optimization": {"stage": 3}}),
    "megatron": lambda: Megatron(plan={"up": "colwise"}),
    "launch": lambda: LaunchSettings(device=[0, 1]),
}


@pytest.mark.parametrize("make", WITH_DICTS_AND_LISTS.values(), ids=list(WITH_DICTS_AND_LISTS))
def test_equal_wishes_are_one_key_whatever_they_hold(make: Any) -> None:
    plain = type(make())()
    assert {make(): "found", plain: "plain"}[make()] == "found"


def test_no_hash_of_a_wish_looks_at_what_may_have_none() -> None:
    kinds = {type(make()) for make in WITH_DICTS_AND_LISTS.values()}
    ours = {
        one for one in Strategy.__subclasses__() if one.__module__.startswith("notebook_accel.")
    }
    assert {SingleDevice} == ours - kinds  # which has no fields
    assert [
        f"{kind.__name__}.{one.name}: {one.type}"
        for kind in kinds
        for one in fields(kind)
        if one.hash is not False and re.search(r"\b(Any|dict|list|set|Mapping)\b", str(one.type))
    ] == []


@pytest.mark.parametrize(
    ("kind", "given", "what", "why"),
    [
        (TensorParallel, {"size": True}, "TensorParallel(size=True)", "at least 1"),
        (Pipeline, {"num_microbatches": 1.5}, "Pipeline(num_microbatches=1.5)", "at least 1"),
        (FSDP, {"min_num_params": -1}, "FSDP(min_num_params=-1)", "at least 0"),
        (SequenceParallel, {"size": 0}, "SequenceParallel(size=0)", "at least 1"),
        (Megatron, {"tp_degree": "2"}, "Megatron(tp_degree='2')", "at least 1"),
    ],
)
def test_what_counts_is_a_whole_number(
    kind: type[Strategy], given: dict[str, Any], what: str, why: str
) -> None:
    (name,) = given
    with pytest.raises(ConfigError) as error:
        kind(**given)
    assert error.value.what == what
    assert error.value.why == f"{name} is a whole number of {why}"
    assert error.value.fix == f"write {name}={1 if '0' in why else 2}, or leave it out"


@pytest.mark.parametrize("kind", [Megatron, DeepSpeed])
@pytest.mark.parametrize("norm", [-1.0, True, "a", float("nan")])
def test_gradients_are_cut_to_a_positive_number(kind: type[Strategy], norm: Any) -> None:
    with pytest.raises(ConfigError) as error:
        kind(gradient_clipping=norm)
    assert error.value.what == f"{kind.__name__}(gradient_clipping={norm!r})"
    assert "the largest norm" in error.value.why
    assert error.value.fix == "write gradient_clipping=1.0, or leave it out"


def test_no_norm_is_zero_but_in_deepspeeds_words() -> None:
    assert DeepSpeed(gradient_clipping=0).gradient_clipping == 0
    with pytest.raises(ConfigError, match=r"Megatron\(gradient_clipping=0\)"):
        Megatron(gradient_clipping=0)


@pytest.mark.parametrize("make", WITH_DICTS_AND_LISTS.values(), ids=list(WITH_DICTS_AND_LISTS))
def test_a_wish_shows_itself_as_it_would_be_written(make: Any) -> None:
    wish, plain = make(), type(make())()
    assert eval(repr(wish)) == wish and eval(repr(plain)) == plain
    if isinstance(wish, Strategy):
        assert repr(plain) in (f"{type(plain).__name__}()", "DeepSpeed(zero_stage=2)")
        assert len(repr(wish)) < 80


def test_a_wish_of_another_package_shows_itself_too_in_its_way_if_it_has_one() -> None:
    @dataclass(frozen=True)
    class Mine(Strategy):
        size: int = 1
        word: str = "a"

    @dataclass(frozen=True)
    class Other(Mine):
        def __repr__(self) -> str:
            return "other"

    assert repr(Mine(size=2)) == "Mine(size=2)" and repr(Mine(word="b")) == 'Mine(word="b")'
    assert repr(Other()) == "other"

"""Wishes: what a strategy is asked for by, in whatever form it was written."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from notebook_accel import (
    DDP,
    FSDP,
    DeepSpeed,
    DeepSpeedPlugin,
    FullyShardedDataParallelPlugin,
    Megatron,
    ParallelismConfig,
    Pipeline,
    SequenceParallel,
)
from notebook_accel.config.handlers import Handlers
from notebook_accel.config.megatron import MegatronLMPlugin, TorchTensorParallelPlugin
from notebook_accel.config.resolve import RunConfig
from notebook_accel.config.strategy import Ways, chosen_strategy, wish_of
from notebook_accel.errors import ConfigError


@pytest.mark.parametrize(
    ("kind", "field", "word"),
    [
        (DDP, "comm_hook", "no"),
        (DDP, "comm_hook", "fp16"),
        (DDP, "comm_wrapper", "bf16"),
        (FSDP, "auto_wrap_policy", "no_wrap"),
        (FSDP, "state_dict_type", "sharded_state_dict"),
        (FSDP, "param_dtype", "bf16"),
        (FSDP, "reduce_dtype", "fp32"),
        (FSDP, "output_dtype", "fp16"),
        (Pipeline, "schedule", "gpipe"),
        (SequenceParallel, "exchange", "heads"),
        (SequenceParallel, "cut", "context"),
        (Megatron, "layers", "torch"),
        (DeepSpeed, "offload_optimizer", "cpu"),
    ],
)
def test_a_word_means_the_same_in_whatever_case_it_is_written(
    kind: Any, field: str, word: str
) -> None:
    for written in (word.upper(), word.title()):
        assert kind(**{field: written}) == kind(**{field: word})
    with pytest.raises(ConfigError, match=field):
        kind(**{field: "moon"})


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (kind, one.name)
        for kind in (DDP, FSDP, DeepSpeed, Megatron)
        for one in fields(kind)
        if one.type == "bool"
    ],
)
@pytest.mark.parametrize("value", ["no", "False", 1])
def test_what_is_on_or_off_is_no_word(kind: Any, field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as error:
        kind(**{field: value})
    assert error.value.what == f"{kind.__name__}({field}={value!r})"


def test_one_name_is_a_list_of_one() -> None:
    alone = FSDP(transformer_cls_names_to_wrap="Block")
    assert alone == FSDP(transformer_cls_names_to_wrap=["Block"])
    assert hash(alone) == hash(FSDP(transformer_cls_names_to_wrap=("Block",)))
    assert Pipeline(split="blocks.1") == Pipeline(split=["blocks.1"])


@pytest.mark.parametrize(
    "plugin",
    [
        FullyShardedDataParallelPlugin(),
        DeepSpeedPlugin(zero_stage=2),
        MegatronLMPlugin(pp_degree=2),
        TorchTensorParallelPlugin(tp_size=2),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_plugin_as_strategy_asks_for_its_wish(plugin: Any) -> None:
    chosen = chosen_strategy(Ways(plugin), Handlers(), RunConfig(), 2)
    assert chosen.wish == plugin.wish() == wish_of(plugin)
    assert chosen.plugin is plugin


def test_axes_as_strategy_are_those_of_their_own_argument() -> None:
    axes = ParallelismConfig(dp_shard_size=2)
    assert chosen_strategy(Ways(axes), Handlers(), RunConfig(), 2) == chosen_strategy(
        Ways(axes=axes), Handlers(), RunConfig(), 2
    )


@pytest.mark.parametrize("strategy", [3, ["ddp"], {"name": "fsdp"}], ids=str)
def test_what_is_no_strategy_is_refused_not_passed_over(strategy: Any) -> None:
    for asks in (wish_of, lambda one: chosen_strategy(Ways(one), Handlers(), RunConfig(), 2)):
        with pytest.raises(ConfigError) as error:
            asks(strategy)
        assert error.value.what.endswith("is no strategy")
        assert "strategy=FSDP(" in error.value.fix


def test_a_wish_of_the_launch_beats_axes_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = RunConfig(num_processes=2, parallelism_config_dp_replicate_size=2)
    wish = FSDP(cpu_offload=True)
    assert chosen_strategy(Ways(launched=wish), Handlers(), asked, 2).wish == wish
    monkeypatch.setenv("PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "2")
    assert chosen_strategy(Ways(), Handlers(), asked, 2).wish == DDP()


def test_a_plugin_twice_is_refused() -> None:
    plugin = FullyShardedDataParallelPlugin()
    with pytest.raises(ConfigError, match="are both given"):
        chosen_strategy(Ways(plugin, {"fsdp_plugin": plugin}), Handlers(), RunConfig(), 2)

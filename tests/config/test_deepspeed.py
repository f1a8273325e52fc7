"""DeepSpeed's settings: the wish, Accelerate's plugin, DeepSpeed's own configuration."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from notebook_accel import DDP, DeepSpeed, DeepSpeedPlugin, RunConfig
from notebook_accel.config.deepspeed import DeepSpeedPlugins
from notebook_accel.config.deepspeed_file import HfDeepSpeedConfig
from notebook_accel.config.deepspeed_filled import filled
from notebook_accel.config.handlers import Handlers
from notebook_accel.config.strategy import Ways, chosen_strategy, settled
from notebook_accel.errors import ConfigError
from notebook_accel.strategies.zero_start import width_of

OWN: dict[str, Any] = {
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 0.5,
    "bf16": {"enabled": True},
}


def chosen(**plugins: Any) -> Any:
    return chosen_strategy(Ways(plugins=plugins), Handlers(), RunConfig(), 2)


# ── the wish ──────────────────────────────────────────────────────────────────────────────────


def test_what_is_left_out_of_a_wish_is_what_the_configuration_says() -> None:
    wish = DeepSpeed(config=OWN)
    assert (wish.zero_stage, wish.offload_optimizer, wish.gradient_clipping) == (3, "cpu", 0.5)
    assert wish.says() == {"gradient_accumulation_steps": 4, "mixed_precision": "bf16"}
    assert DeepSpeed().zero_stage == 2 and DeepSpeed().says() == {}


@pytest.mark.parametrize(
    ("settings", "what", "fix"),
    [
        ({"zero_stage": 4}, "DeepSpeed(zero_stage=4)", "zero_stage=2"),
        ({"zero_stage": 0}, "DeepSpeed(zero_stage=0)", "strategy=DDP()"),
        ({"offload_optimizer": "disk"}, "offload_optimizer='disk'", "nvme"),
        ({"offload_optimizer": "nvme"}, "without a folder", "offload_optimizer_path="),
        (
            {"offload_param": "cpu"},
            "DeepSpeed(offload_param='cpu', zero_stage=2)",
            "zero_stage=3",
        ),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps=0", "steps=2, or leave"),
        ({"gradient_clipping": "a"}, "gradient_clipping='a'", "1.0"),
        ({"gradient_clipping": -1}, "gradient_clipping=-1", "1.0"),
        ({"zero_stage": 2, "config": OWN}, "zero_optimization.stage=3", "leave zero_stage out"),
        (
            {"config": {"zero_optimization": {"stage": 3, "round_robin_gradients": True}}},
            "zero_optimization.round_robin_gradients in stage 3",
            "take round_robin_gradients out",
        ),
        ({"config": 3}, "config is an int", "ds_config.json"),
        ({"config": "absent.json"}, "'absent.json' is no file", "as a dict"),
    ],
)
def test_what_cannot_be_is_an_error(settings: dict[str, Any], what: str, fix: str) -> None:
    with pytest.raises(ConfigError) as error:
        DeepSpeed(**settings)
    assert what in error.value.what
    assert error.value.why
    assert fix in error.value.fix


def test_two_number_formats_at_once_are_an_error() -> None:
    both = {"bf16": {"enabled": True}, "fp16": {"enabled": True}}
    with pytest.raises(ConfigError, match=r"bf16\.enabled and fp16\.enabled are both true"):
        DeepSpeed(config=both).says()


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        (
            {"mixed_precision": "fp16"},
            "mixed_precision='fp16', but DeepSpeed has mixed_precision='bf16'",
        ),
        (
            {"gradient_accumulation_steps": 2},
            "gradient_accumulation_steps=2, but DeepSpeed has gradient_accumulation_steps=4",
        ),
    ],
)
def test_what_the_call_and_the_file_say_differently_is_an_error_naming_both(
    asked: dict[str, Any], what: str
) -> None:
    with pytest.raises(ConfigError) as error:
        settled(RunConfig(**asked), DeepSpeed(config=OWN))
    assert error.value.what == what
    assert "leave one of them out" in error.value.fix


def test_what_only_the_file_says_is_the_runs() -> None:
    config = settled(RunConfig(), DeepSpeed(config=OWN))
    assert (config.mixed_precision, config.gradient_accumulation_steps) == ("bf16", 4)


# ── the plugin ────────────────────────────────────────────────────────────────────────────────


def test_accelerates_fields_are_the_wishes() -> None:
    plugin = DeepSpeedPlugin(
        zero_stage=3, offload_param_device="cpu", gradient_clipping="auto", zero3_init_flag=True
    )
    assert plugin.wish() == DeepSpeed(zero_stage=3, offload_param="cpu")
    assert DeepSpeedPlugin(zero_stage=0).wish() == DDP()
    assert DeepSpeedPlugin(hf_ds_config={"zero_optimization": {"stage": 0}}).wish() == DDP()


def test_a_configuration_is_a_file_a_dict_base64_or_what_has_one(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(OWN))
    text = base64.urlsafe_b64encode(json.dumps(OWN).encode()).decode()
    for given in (file, str(file), OWN, text, SimpleNamespace(config=OWN), HfDeepSpeedConfig(OWN)):
        assert DeepSpeedPlugin(hf_ds_config=given).deepspeed_config == OWN
    file.write_text("{\n  oops\n}")
    with pytest.raises(ConfigError, match="line 2"):
        DeepSpeedPlugin(hf_ds_config=file)
    file.write_text("[1]")
    with pytest.raises(ConfigError, match="holds a list"):
        DeepSpeedPlugin(hf_ds_config=file)


def test_variables_say_what_the_plugin_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "cpu")
    monkeypatch.setenv("ACCELERATE_GRADIENT_CLIPPING", "0.7")
    wish = DeepSpeedPlugin(offload_param_device="none").wish()
    assert isinstance(wish, DeepSpeed)
    assert (wish.zero_stage, wish.offload_param, wish.gradient_clipping) == (3, "none", 0.7)
    assert DeepSpeedPlugin(hf_ds_config={"zero_optimization": {"stage": 1}}).zero_stage is None
    own = {"zero_optimization": {"stage": "auto"}}
    assert DeepSpeedPlugin(hf_ds_config=own).wish().zero_stage == 3  # type: ignore[attr-defined]


def test_a_file_named_by_a_variable_says_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(OWN))
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(tmp_path / "ds.json"))
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2")
    assert DeepSpeedPlugin().wish() == DeepSpeed(config=OWN)


def test_msamp_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        DeepSpeedPlugin(enable_msamp=True)
    assert "MS-AMP" in error.value.why
    assert 'mixed_precision="bf16"' in error.value.fix


def test_a_raw_configuration_as_the_plugin_is_answered_with_where_it_belongs() -> None:
    with pytest.raises(ConfigError) as error:
        chosen(deepspeed_plugin={"zero_optimization": {"stage": 2}})
    assert "deepspeed_plugin is a dict of 'zero_optimization'" in error.value.what
    assert "DeepSpeedPlugin(hf_ds_config={...})" in error.value.fix


def test_of_several_plugins_the_first_counts_until_another_is_selected() -> None:
    plugins = {"student": DeepSpeedPlugin(zero_stage=2), "teacher": DeepSpeedPlugin(zero_stage=3)}
    for argument in ("deepspeed_plugin", "deepspeed_plugins"):
        several = chosen(**{argument: plugins}).plugin
        assert isinstance(several, DeepSpeedPlugins)
        assert several.wish() == DeepSpeed(zero_stage=2)
    assert several.select("teacher") is plugins["teacher"] is several.selected
    assert several.wish() == DeepSpeed(zero_stage=3)
    assert (plugins["student"].selected, plugins["teacher"].selected) == (False, True)
    with pytest.raises(ConfigError) as error:
        several.select("pupil")
    assert error.value.what == "there is no DeepSpeed plugin 'pupil'"
    assert "'student', 'teacher'" in error.value.why


def test_two_kinds_of_plugins_are_one_too_many() -> None:
    from notebook_accel import FullyShardedDataParallelPlugin

    with pytest.raises(ConfigError, match="fsdp_plugin and deepspeed_plugin are both given"):
        chosen(fsdp_plugin=FullyShardedDataParallelPlugin(), deepspeed_plugin=DeepSpeedPlugin())


# ── DeepSpeed's own words ─────────────────────────────────────────────────────────────────────


def test_a_configuration_is_asked_by_dotted_names() -> None:
    own = HfDeepSpeedConfig({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}})
    assert own.get_value("zero_optimization.stage") == 3
    assert own.get_value("optimizer.params.lr", 0.1) == 0.1
    assert own.is_zero3() and not own.is_zero2() and own.is_offload()
    assert own.is_true("zero_optimization.stage") and not own.is_false("bf16.enabled")
    own.del_config_sub_tree("zero_optimization.offload_param")
    assert not own.is_offload()
    with pytest.raises(ConfigError, match="there is no optimizer in DeepSpeed's configuration"):
        own.del_config_sub_tree("optimizer", must_exist=True)


def test_what_is_open_or_left_out_is_filled_in_from_the_run() -> None:
    own = {
        "zero_optimization": {
            "stage": 3,
            "reduce_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            "stage3_prefetch_bucket_size": "auto",
        },
        "bf16": {"enabled": "auto"},
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
    }
    model = nn.Linear(1, 1)
    model.config = SimpleNamespace(hidden_size=64)  # type: ignore[assignment]
    found = filled(DeepSpeed(config=own), "bf16", {}, width_of(model))
    assert found["zero_optimization"] == {
        "stage": 3,
        "reduce_bucket_size": 4096,
        "stage3_param_persistence_threshold": 640,
        "stage3_prefetch_bucket_size": 3686,
    }
    assert (found["bf16"]["enabled"], found["fp16"]["enabled"]) == (True, False)
    assert found["gradient_accumulation_steps"] == found["train_micro_batch_size_per_gpu"] == 1
    assert found["gradient_clipping"] == 0.0  # not DeepSpeed's own 1.0
    assert "train_batch_size" not in found
    assert own["gradient_clipping"] == "auto"  # the person's own is as it was
    assert width_of(nn.Linear(1, 1)) is None
    assert filled(DeepSpeed(config=own), "no", {})["zero_optimization"] == {"stage": 3}


def test_the_loss_scale_of_fp16_starts_and_moves_as_the_scaler_was_asked_to() -> None:
    found = filled(DeepSpeed(), "fp16", {"init_scale": 1024.0, "growth_interval": 7})["fp16"]
    assert (found["initial_scale_power"], found["loss_scale_window"]) == (10, 7)
    own = {"fp16": {"enabled": "auto", "initial_scale_power": 5}}
    assert filled(DeepSpeed(config=own), "fp16", {})["fp16"]["initial_scale_power"] == 5


def test_a_number_format_that_the_file_forbids_is_an_error() -> None:
    with pytest.raises(ConfigError) as error:
        filled(DeepSpeed(config={"bf16": {"enabled": False}}), "bf16", {})
    assert "bf16.enabled=False" in error.value.what
    assert 'bf16.enabled="auto"' in error.value.fix


def test_what_nothing_in_the_run_can_fill_in_is_an_error() -> None:
    with pytest.raises(ConfigError) as error:
        filled(DeepSpeed(config={"flops_profiler": {"profile_step": "auto"}}), "no", {})
    assert 'flops_profiler.profile_step="auto"' in error.value.what
    assert "take it out" in error.value.fix

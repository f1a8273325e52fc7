"""kwargs handlers: plain settings that reach torch under their own names."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch

from notebook_accel import (
    Accelerator,
    AutocastKwargs,
    DDPCommunicationHookType,
    DistributedDataParallelKwargs,
    FullyShardedDataParallelPlugin,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    ProfileKwargs,
)
from notebook_accel.config.handlers import Handlers
from notebook_accel.config.parallelism import ParallelismConfig
from notebook_accel.config.resolve import RunConfig
from notebook_accel.config.strategy import Ways, chosen_strategy
from notebook_accel.config.wishes import DDP, FSDP, Pipeline, SingleDevice, TensorParallel
from notebook_accel.errors import ConfigError


def test_only_changed_fields_are_passed_on() -> None:
    assert AutocastKwargs().to_kwargs() == {}
    assert GradScalerKwargs(growth_interval=5).to_kwargs() == {"growth_interval": 5}
    ddp = DistributedDataParallelKwargs(find_unused_parameters=True, comm_hook="fp16")
    assert ddp.to_kwargs() == {"find_unused_parameters": True}
    assert ddp.to_dict()["comm_hook"] == "fp16"
    assert ProfileKwargs(record_shapes=True).to_kwargs() == {"record_shapes": True}


def test_handed_out_settings_are_copies() -> None:
    ddp = DistributedDataParallelKwargs(comm_state_option={"matrix_approximation_rank": 2})
    ddp.to_dict()["comm_state_option"]["matrix_approximation_rank"] = 9
    assert ddp.comm_state_option == {"matrix_approximation_rank": 2}


def test_hooks_are_known_by_name_and_by_enum() -> None:
    hook = DDPCommunicationHookType
    assert DistributedDataParallelKwargs(comm_hook=hook.BF16).comm_hook is hook.BF16
    assert DistributedDataParallelKwargs(comm_hook="power_sgd").comm_hook == hook.POWER_SGD
    assert str(hook.FP16) == "fp16"
    assert hook.list() == ["no", "fp16", "bf16", "power_sgd", "batched_power_sgd"]


@pytest.mark.parametrize("make", [DistributedDataParallelKwargs, DDP])
def test_an_unknown_hook_is_refused_with_the_choices(make) -> None:
    with pytest.raises(ConfigError) as error:
        make(comm_hook="zip")
    assert error.value.what == "comm_hook='zip' is not known"
    assert "'no', 'fp16', 'bf16', 'power_sgd', 'batched_power_sgd'" in error.value.why
    with pytest.raises(ConfigError, match="comm_wrapper='power_sgd' is not known"):
        make(comm_wrapper="power_sgd")
    with pytest.raises(ConfigError) as error:
        make(comm_hook="powersgd")
    assert error.value.fix == "pass comm_hook='power_sgd'"


def test_settings_of_ddp_become_its_wish() -> None:
    given = DistributedDataParallelKwargs(bucket_cap_mb=10, comm_hook="bf16")
    assert Handlers.of([given]).strategy(None) == DDP(bucket_cap_mb=10, comm_hook="bf16")
    assert Handlers.of([]).strategy(SingleDevice()) == SingleDevice()


def test_a_strategy_and_settings_of_ddp_together_are_refused() -> None:
    with pytest.raises(ConfigError) as error:
        Accelerator(cpu=True, strategy=DDP(), kwargs_handlers=[DistributedDataParallelKwargs()])
    assert "strategy=DDP(" in error.value.what
    assert "strategy=DDP(...)" in error.value.fix


BF16 = DistributedDataParallelKwargs(comm_hook="bf16", find_unused_parameters=True)
LOW_RANK = DistributedDataParallelKwargs(comm_hook="power_sgd")


def test_gradients_of_shards_travel_in_the_numbers_of_the_hook() -> None:
    handlers = Handlers.of([BF16])
    assert handlers.strategy(FSDP(replicas=2)) == FSDP(replicas=2, reduce_dtype="bf16")
    assert handlers.strategy(FSDP(reduce_dtype="bf16")) == FSDP(reduce_dtype="bf16")
    shared = handlers.strategy(TensorParallel(size=2))
    assert shared == TensorParallel(size=2, data=FSDP(reduce_dtype="bf16"))
    assert handlers.strategy(SingleDevice()) == SingleDevice()
    plain = Handlers.of([DistributedDataParallelKwargs(find_unused_parameters=True)])
    assert plain.strategy(Pipeline()) == Pipeline()


@pytest.mark.parametrize(
    ("handler", "wish", "what", "why", "fix"),
    [
        (
            LOW_RANK,
            FSDP(),
            "comm_hook='power_sgd' under strategy=FSDP(...)",
            "only its rows",
            "comm_hook='bf16' or 'fp16', or strategy=DDP(...)",
        ),
        (
            BF16,
            Pipeline(),
            "comm_hook='bf16' under strategy=Pipeline(...)",
            "averages gradients by itself",
            "FSDP and TensorParallel 'fp16' and 'bf16'",
        ),
        (
            BF16,
            FSDP(reduce_dtype="fp16"),
            "comm_hook='bf16' and FSDP(reduce_dtype='fp16')",
            "both say",
            "leave one of them out",
        ),
    ],
)
def test_a_form_that_a_strategy_has_not_is_refused(
    handler: Any, wish: Any, what: str, why: str, fix: str
) -> None:
    with pytest.raises(ConfigError) as error:
        Accelerator(cpu=True, strategy=wish, kwargs_handlers=[handler])
    assert (error.value.what, why in error.value.why) == (what, True)
    assert fix in error.value.fix


def test_a_plugin_and_a_launch_keep_their_strategy_beside_settings_of_ddp() -> None:
    handlers, asked = Handlers.of([BF16]), RunConfig()
    sharded = FSDP(reduce_dtype="bf16")

    def chosen(**ways: Any) -> Any:
        return chosen_strategy(Ways(**ways), handlers, asked, 2).wish

    plugin = FullyShardedDataParallelPlugin(auto_wrap_policy="transformer_based_wrap")
    assert chosen(plugins={"fsdp_plugin": plugin}).reduce_dtype == "bf16"
    assert chosen(launched=FSDP()) == sharded
    ddp = DDP(comm_hook="bf16", find_unused_parameters=True)
    assert chosen(launched=DDP(bucket_cap_mb=1)) == ddp
    assert chosen(axes=ParallelismConfig(dp_replicate_size=2)) == ddp
    assert chosen(axes=ParallelismConfig(dp_shard_size=2)) == sharded


@pytest.mark.parametrize("value", [3600, 3600.0, timedelta(hours=1)])
def test_a_timeout_is_a_timedelta_or_seconds(value: object) -> None:
    """CT06."""
    assert InitProcessGroupKwargs(timeout=value).to_kwargs() == {"timeout": timedelta(hours=1)}
    assert InitProcessGroupKwargs().to_kwargs() == {}


@pytest.mark.parametrize("value", ["3600", True, [1]])
def test_a_timeout_of_another_type_is_refused_when_the_handler_is_made(value: object) -> None:
    """CT06."""
    with pytest.raises(ConfigError) as error:
        InitProcessGroupKwargs(timeout=value)
    assert f"timeout={value!r} is a {type(value).__name__}" in error.value.what
    assert "ends the run" in error.value.why
    assert "seconds" in error.value.fix and "timedelta" in error.value.fix


@pytest.mark.parametrize("value", [0, -5, timedelta(0)])
def test_a_timeout_that_has_passed_already_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="is not above zero"):
        InitProcessGroupKwargs(timeout=value)


def test_what_is_no_handler_and_two_of_a_kind_are_refused() -> None:
    with pytest.raises(ConfigError) as error:
        Accelerator(cpu=True, kwargs_handlers=[{"enabled": False}])
    assert "{'enabled': False}, which is no handler" in error.value.what
    assert "AutocastKwargs" in error.value.why
    assert "kwargs_handlers=[" in error.value.fix
    with pytest.raises(ConfigError) as error:
        Accelerator(cpu=True, kwargs_handlers=[AutocastKwargs(), AutocastKwargs(enabled=False)])
    assert "two AutocastKwargs" in error.value.what
    assert "into one" in error.value.fix


def test_settings_reach_the_loss_scaler_and_the_casts() -> None:
    accelerator = Accelerator(
        cpu=True,
        mixed_precision="fp16",
        kwargs_handlers=[GradScalerKwargs(init_scale=8.0), AutocastKwargs(enabled=False)],
    )
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    loss = model(torch.ones(1, 1)).sum()
    accelerator.backward(loss)
    assert model.weight.grad.item() == 8.0
    with accelerator.autocast():
        assert torch.nn.functional.linear(torch.ones(1, 1), model.weight).dtype == torch.float32
    with accelerator.autocast(AutocastKwargs(cache_enabled=False)):
        assert torch.nn.functional.linear(torch.ones(1, 1), model.weight).dtype == torch.float16

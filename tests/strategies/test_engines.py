"""Wishes become engines; the single device does every verb."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from notebook_accel import Accelerator, DeepSpeedPlugin
from notebook_accel.config.placement import Placement
from notebook_accel.config.wishes import DDP, SingleDevice, Strategy
from notebook_accel.errors import ConfigError
from notebook_accel.ranks.world import World
from notebook_accel.strategies.base import Engine, Layout, Parts
from notebook_accel.strategies.precision import Precision
from notebook_accel.strategies.registry import BUILT_IN, build
from tests.support.ranks import run_ranks

ALONE = World.alone()


def engine(precision: str = "no") -> Engine:
    return build(None, ALONE, Precision(precision, ALONE.device))


def test_one_rank_gets_the_single_device_whatever_data_parallelism_was_wished() -> None:
    for wish in (None, SingleDevice(), DDP(find_unused_parameters=True)):
        made = build(wish, ALONE, Precision("no", ALONE.device))
        assert type(made) is Engine
        assert made.layout == Layout(0, 1, True)


def test_a_single_device_among_many_ranks_is_refused() -> None:
    world = replace(ALONE, placement=Placement(size=2, comm="gloo"))
    with pytest.raises(ConfigError) as error:
        build(SingleDevice(), world, Precision("no", world.device))
    assert "SingleDevice() in a world of 2" in error.value.what
    assert "num_processes=1" in error.value.fix


def test_an_unknown_wish_is_refused_with_the_known_ones() -> None:
    @dataclass(frozen=True)
    class Mine(Strategy):
        pass

    with pytest.raises(ConfigError) as error:
        build(Mine(), ALONE, Precision("no", ALONE.device))
    assert "has no engine" in error.value.what
    assert all(one.__name__ in error.value.why for one in BUILT_IN)
    assert "notebook_accel.strategies" in error.value.fix


def test_a_plugin_of_another_strategy_is_refused_and_the_first_stays_selected() -> None:
    plugins = {"student": DeepSpeedPlugin(zero_stage=0), "teacher": DeepSpeedPlugin(zero_stage=3)}
    accelerator = Accelerator(cpu=True, deepspeed_plugin=plugins)
    with pytest.raises(ConfigError, match=r"asks for DeepSpeed\n.*all its models under DDP\n"):
        accelerator.state.select_deepspeed_plugin("teacher")
    assert accelerator.deepspeed_plugin is plugins["student"]


def test_wishes_are_values() -> None:
    assert DDP() == DDP()
    assert DDP(static_graph=True) != DDP()
    assert DDP() != SingleDevice()


def test_wrapping_keeps_parts_in_order_and_optimizer_state() -> None:
    models = nn.Linear(1, 1), nn.Linear(2, 2)
    optimizer = torch.optim.Adam(models[0].parameters())
    models[0](torch.ones(1, 1)).sum().backward()
    optimizer.step()
    parts = engine().wrap(Parts(models, (optimizer,)))
    assert parts.models == models
    assert parts.optimizers == (optimizer,)
    assert optimizer.state[models[0].weight]["step"].item() == 1


def test_forward_backward_gives_the_loss_and_weighted_gradients() -> None:
    model = nn.Linear(1, 1)
    batch = torch.ones(2, 1), torch.zeros(2, 1)
    loss = engine().forward_backward(model, batch, nn.functional.mse_loss, weight=0.5)
    assert not loss.requires_grad
    halved = model.weight.grad.clone()
    model.zero_grad()
    nn.functional.mse_loss(model(batch[0]), batch[1]).backward()
    assert torch.allclose(halved, model.weight.grad / 2)


def test_a_state_goes_out_and_comes_back() -> None:
    source, target = nn.Linear(2, 2), nn.Linear(2, 2)
    one = engine("bf16")
    one.wrap(Parts((source, target)))
    one.load_state_dict(target, one.state_dict(source))
    assert torch.equal(source.weight, target.weight)


def test_fp16_scales_on_the_cpu_too() -> None:
    one = engine("fp16")
    assert one.scales
    weight = nn.Parameter(torch.ones(1))
    one.backward(weight.sum())
    assert weight.grad.item() == one.precision.scaler.get_scale() > 1


def ddp_with_options():
    import torch
    from torch import nn

    from notebook_accel import Accelerator
    from notebook_accel.config.wishes import DDP

    accelerator = Accelerator(cpu=True, strategy=DDP(find_unused_parameters=True))
    torch.manual_seed(accelerator.process_index)
    net = nn.ModuleDict({"used": nn.Linear(1, 1), "unused": nn.Linear(1, 1)})
    net.forward = lambda x: net["used"](x)
    net.register_buffer("noise", torch.rand(1))
    model = accelerator.prepare(net)
    for _ in range(2):  # without the option the second pass would fail
        accelerator.backward(model(torch.ones(1, 1)).sum())
    states = accelerator.gather([one.reshape(-1) for one in net.state_dict().values()])
    return [bool(torch.equal(*one.chunk(2))) for one in states]


def test_the_options_of_a_wish_reach_torch_and_ranks_start_alike() -> None:
    assert run_ranks(ddp_with_options, 2) == [[True] * 5] * 2

"""FSDP beyond the agreement of its numbers: what is cut, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import Accelerator, RunConfig, notebook_launcher
from notebook_accel.config.wishes import FSDP
from notebook_accel.errors import ConfigError, RanksStuck
from notebook_accel.strategies.blocks import find_blocks
from tests.support.nets import Block, Net


def on_two(function: Any, *args: Any, size: int = 2, **kwargs: Any) -> Any:
    return notebook_launcher(function, args, size, device="cpu", timeout_s=100, **kwargs)


def prepared(**wish: Any) -> tuple[Accelerator, nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, strategy=FSDP(**wish))
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    return accelerator, model, optimizer


def step(accelerator: Accelerator, model: nn.Module, optimizer: Any) -> float:
    loss = model(torch.ones(2, 4)).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


# ── which parts ───────────────────────────────────────────────────────────────────────────────


class Named(Net):
    _no_split_modules = ("Block",)


class Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)


def test_blocks_are_the_named_classes_else_those_of_the_models_lists() -> None:
    for model in (Net(), Named()):
        assert [type(one) for one in find_blocks(model, "auto")] == [Block, Block]
        assert len(find_blocks(model, "transformer_based_wrap", ["LayerNorm", "Block"])) == 4
    assert find_blocks(Net(), "no_wrap") == find_blocks(Flat(), "auto") == []


class Convolutions(nn.Module):
    """Sequences, one of them inside of another, and weights that two modules have."""

    def __init__(self) -> None:
        super().__init__()
        inner = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), inner, nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 4)
        self.tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.tied[1].weight = self.head.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tied(self.head(self.body(x)))


def test_without_lists_the_blocks_are_the_modules_of_sequences() -> None:
    model = Convolutions()
    assert find_blocks(model, "auto") == [
        model.body[0],
        model.body[2],
        model.body[3],
        model.tied[0],
    ]
    assert find_blocks(nn.Sequential(Net(), nn.Linear(1, 1)), "auto")[0].__class__ is Block
    with pytest.raises(ConfigError, match="no class to wrap is known"):
        find_blocks(model, "transformer_based_wrap")


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(4, 6), nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(self.enter(x))


def trains_without_lists() -> list[Any]:
    told: list[Any] = []
    for wish in (FSDP(), FSDP(auto_wrap_policy="no_wrap")):
        torch.manual_seed(0)
        accelerator = Accelerator(cpu=True, strategy=wish)
        model = Convolutions()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = accelerator.prepare(model, optimizer)
        for _ in range(2):
            accelerator.backward(model(torch.arange(12.0).view(3, 4) / 12).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        told.append({name: one.tolist() for name, one in accelerator.get_state_dict(model).items()})
        told.append("\n".join(accelerator._explanation()))
    accelerator = Accelerator(cpu=True, strategy=FSDP())
    accelerator.prepare(TwoLayers())
    return [*told, "\n".join(accelerator._explanation())]


def test_sequences_are_cut_and_who_has_no_blocks_is_told() -> None:
    run = on_two(trains_without_lists)
    cut, explained, whole, asked_for, unfound = run[0]
    assert cut.keys() == whole.keys()
    for name, values in cut.items():
        assert torch.allclose(torch.tensor(values), torch.tensor(whole[name])), name
    assert "5 parts, each sharded over 2 ranks" in explained
    assert "1 part, each sharded over 2 ranks" in asked_for
    assert "1 part (no blocks were found, auto_wrap_policy says" in unfound
    notes = [line for line in run.logs if "no blocks" in line]
    assert len(notes) == 1 and "in TwoLayers" in notes[0] and "auto_wrap_policy" in notes[0]


def test_inner_blocks_come_before_those_around_them() -> None:
    names = [
        type(one).__name__
        for one in find_blocks(Net(), "transformer_based_wrap", ["LayerNorm", "Block"])
    ]
    assert names == ["LayerNorm", "Block"] * 2


def test_parts_by_size_are_the_smallest_that_are_large_enough() -> None:
    model = Net()
    sizes = [
        sum(one.numel() for one in part.parameters())
        for part in find_blocks(model, "size_based_wrap", min_num_params=50)
    ]
    assert sizes == [84, 78, 84, 78]  # the blocks' linear layers


def test_a_function_may_say_what_is_a_part() -> None:
    def policy(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
        return isinstance(module, nn.Linear) and nonwrapped_numel > 20

    assert len(find_blocks(Net(), policy)) == 5


def test_a_class_that_is_not_there_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError) as error:
        find_blocks(Net(), "transformer_based_wrap", ["Blok"])
    assert "'Blok', which is not in Net" in error.value.what
    assert "Block, LayerNorm, Linear" in error.value.why
    assert error.value.fix == "write 'Block'"


def test_a_model_without_modules_inside_is_said_to_be_one() -> None:
    with pytest.raises(ConfigError) as error:
        find_blocks(nn.Linear(2, 2), "transformer_based_wrap", ["Block"])
    assert "names 'Block', and Linear has no modules inside" in error.value.what
    assert error.value.fix == "leave the classes out: such a model is one block"


def test_no_known_class_is_refused_where_one_is_needed() -> None:
    with pytest.raises(ConfigError) as error:
        find_blocks(Flat(), "transformer_based_wrap")
    assert "no class to wrap is known in Flat" in error.value.what
    assert "transformer_cls_names_to_wrap with some of: Linear" in error.value.fix


# ── what is cut ───────────────────────────────────────────────────────────────────────────────


def looks_at_a_rank() -> dict[str, Any]:
    accelerator, model, optimizer = prepared()
    held = sum(one.to_local().numel() for one in model.parameters())
    total = sum(one.numel() for one in model.parameters())
    step(accelerator, model, optimizer)
    whole = accelerator.get_state_dict(model)
    return {
        "held": held,
        "total": total,
        "kind": str(accelerator.distributed_type),
        "is_fsdp2": accelerator.is_fsdp2,
        "is the person's": isinstance(accelerator.unwrap_model(model), Net),
        "whole": {name: tuple(one.shape) for name, one in whole.items()},
        "again": accelerator.prepare(model) is model,
        "explained": "\n".join(accelerator._explanation()),
    }


def test_each_rank_holds_its_part_and_the_main_rank_gets_the_whole() -> None:
    first, second = on_two(looks_at_a_rank)
    assert first["held"] + second["held"] == first["total"]
    assert first["kind"] == "FSDP" and first["is_fsdp2"]
    assert first["is the person's"] and first["again"]
    assert first["whole"] == {name: tuple(one.shape) for name, one in Net().state_dict().items()}
    assert second["whole"] == {}
    assert "3 parts, each sharded over 2 ranks" in first["explained"]


def prepares_apart() -> list[float]:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, strategy=FSDP())
    model = Net()
    before = list(model.parameters())
    optimizer = torch.optim.SGD(before, lr=0.1)
    optimizer = accelerator.prepare(optimizer)  # the model comes later
    model = accelerator.prepare(model)
    accelerator.backward(model(torch.ones(2, 4)).square().mean())
    norm = accelerator.clip_grad_norm_(before, 1e9)  # a list from before prepare
    optimizer.step()
    return [norm.item(), step(accelerator, model, optimizer)]


def prepares_together() -> list[float]:
    accelerator, model, optimizer = prepared()
    accelerator.backward(model(torch.ones(2, 4)).square().mean())
    norm = accelerator.clip_grad_norm_(model.parameters(), 1e9)
    optimizer.step()
    optimizer.zero_grad()
    return [norm.item(), step(accelerator, model, optimizer)]


def test_model_and_optimizer_may_be_prepared_apart_and_in_any_order() -> None:
    apart, together = on_two(prepares_apart)[0], on_two(prepares_together)[0]
    assert apart == pytest.approx(together) and apart[0] > 0


def builds_apart() -> list[float]:
    accelerator = Accelerator(cpu=True, strategy=FSDP())
    torch.manual_seed(accelerator.process_index)
    model = accelerator.prepare(Net())
    return [one.sum().item() for one in accelerator.get_state_dict(model).values()]


def test_ranks_that_built_apart_start_from_rank_0_and_are_told_how_not_to() -> None:
    run = on_two(builds_apart)
    torch.manual_seed(0)
    expected = [one.sum().item() for one in Net().state_dict().values()]
    assert run[0] == pytest.approx(expected)
    assert "all start from rank 0's (set_seed" in run.logs[0]


def loads_lean() -> list[Any]:
    accelerator = Accelerator(cpu=True, strategy=FSDP(cpu_ram_efficient_loading=True))
    torch.manual_seed(0)
    with torch.device("cpu" if accelerator.is_main_process else "meta"):
        model = Net()
        model.blocks[1].up.weight = model.blocks[0].up.weight  # tied
        model.register_buffer("scale", torch.full((1,), 2.0), persistent=False)
    model = accelerator.prepare(model)
    state = accelerator.get_state_dict(model)
    return [model.scale.item(), {name: one.sum().item() for name, one in state.items()}]


def test_rank_0_alone_needs_weights_also_of_buffers_that_no_state_has() -> None:
    first, second = on_two(loads_lean)
    torch.manual_seed(0)
    expected = {name: one.sum().item() for name, one in Net().state_dict().items()}
    expected["blocks.1.up.weight"] = expected["blocks.0.up.weight"]
    assert first[1] == pytest.approx(expected)
    assert first[0] == second[0] == 2.0


def trains_lean(recompute: bool) -> list[float]:
    torch.manual_seed(0)
    wish = FSDP(cpu_ram_efficient_loading=True, activation_checkpointing=recompute)
    accelerator = Accelerator(cpu=True, strategy=wish)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    losses = []
    for _ in range(3):
        loss = model(torch.ones(2, 4)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("recompute", [False, True])
def test_an_optimizer_made_before_follows_through_lean_loading(recompute: bool) -> None:
    """The weights pass through the meta device: the optimizer must not stay with what it had."""
    first, second = on_two(trains_lean, recompute)
    assert first == second
    assert first[2] < first[1] < first[0]


def ignores_a_frozen_part(lean: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Net()
    model.enter.requires_grad_(False)
    wish = FSDP(ignored_modules="enter", cpu_ram_efficient_loading=lean)
    accelerator = Accelerator(cpu=True, strategy=wish)
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    losses = [step(accelerator, model, optimizer) for _ in range(2)]
    return {"losses": losses, "whole": not hasattr(model.enter.weight, "full_tensor")}


@pytest.mark.parametrize("lean", [False, True])
def test_ignored_parts_stay_whole_and_are_used(lean: bool) -> None:
    alone = ignores_a_frozen_part(False)
    shared = on_two(ignores_a_frozen_part, lean)[1]
    assert shared["whole"]
    assert shared["losses"] == pytest.approx(alone["losses"])


def all_on_meta() -> None:
    accelerator = Accelerator(cpu=True, strategy=FSDP(cpu_ram_efficient_loading=True))
    with torch.device("meta"):
        accelerator.prepare(Net())


def test_somebody_must_have_weights() -> None:
    with pytest.raises(ConfigError, match="rank 0's model is on the meta device"):
        on_two(all_on_meta)


# ── gradients ─────────────────────────────────────────────────────────────────────────────────


def counts_collectives(accumulate: int) -> int:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, strategy=FSDP(), gradient_accumulation_steps=accumulate)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.ones(16, 4)), batch_size=8 // accumulate // 2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for (inputs,) in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(inputs).square().mean())
                optimizer.step()
                optimizer.zero_grad()
    return sum(
        one.count
        for one in profile.key_averages()
        if one.key.startswith("c10d::") and "reduce_scatter" in one.key
    )


def test_accumulation_averages_gradients_once_an_update() -> None:
    once = on_two(counts_collectives, 1)[0]
    assert once == 2 * 3  # two updates, three parts
    assert on_two(counts_collectives, 4)[0] == once


def fails_inside_a_window() -> list[float]:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, strategy=FSDP(), gradient_accumulation_steps=2)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model, optimizer = accelerator.prepare(model, optimizer)
    norms = []
    for spoiled in (True, False):
        if spoiled:
            with pytest.raises(ZeroDivisionError), accelerator.accumulate(model):
                accelerator.backward(model(torch.full((2, 4), 9.0)).square().mean())
                raise ZeroDivisionError
        for _ in range(2):
            with accelerator.accumulate(model):
                accelerator.backward(model(torch.ones(2, 4)).square().mean())
        norms.append(accelerator.clip_grad_norm_(model.parameters(), 1e9).item())
        optimizer.step()
        optimizer.zero_grad()
    return norms


def test_a_window_that_failed_leaves_no_gradient_behind() -> None:
    spoiled, clean = on_two(fails_inside_a_window)[0]
    assert spoiled == pytest.approx(clean) and clean > 0


# ── refused ───────────────────────────────────────────────────────────────────────────────────


def makes(**wish: Any) -> None:
    prepared(**wish)


@pytest.mark.parametrize(
    ("wish", "what"),
    [
        ({"replicas": 3}, "FSDP(replicas=3) in a world of 2 ranks"),
        ({"ignored_modules": "leave"}, "has parameters that are trained"),
        ({"ignored_modules": "nowhere"}, "ignored_modules='nowhere' names nothing in Net"),
        ({"transformer_cls_names_to_wrap": ("Blok",)}, "'Blok', which is not in Net"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_cut(wish: dict, what: str) -> None:
    with pytest.raises(ConfigError) as error:
        notebook_launcher(makes, (), 2, device="cpu", kwargs=wish, timeout_s=100)
    assert what in str(error.value)


@pytest.mark.parametrize(
    ("wish", "what"),
    [
        ({"replicas": 0}, "FSDP(replicas=0)"),
        ({"min_num_params": "many"}, "FSDP(min_num_params='many')"),
        ({"auto_wrap_policy": "transformer"}, "auto_wrap_policy='transformer' is not known"),
        ({"state_dict_type": "whole"}, "state_dict_type='whole' is not known"),
        ({"param_dtype": "int8"}, "param_dtype='int8' is not known"),
    ],
)
def test_a_wish_is_valid_when_made(wish: dict, what: str) -> None:
    with pytest.raises(ConfigError) as error:
        FSDP(**wish)
    assert what in error.value.what


def builds_other_models() -> None:
    accelerator = Accelerator(cpu=True, strategy=FSDP())
    accelerator.prepare(nn.Linear(2, 2 + accelerator.process_index))


def test_models_of_different_builds_are_refused_on_every_rank() -> None:
    with pytest.raises(ConfigError, match="rank 0 and rank 1 have different parameters"):
        on_two(builds_other_models)


def saves_alone(folder: Path) -> None:
    accelerator, _, _ = prepared()
    if accelerator.is_main_process:
        accelerator.save_state(folder)


def test_saving_shards_on_the_main_rank_alone_is_told_and_does_not_hang(tmp_path: Path) -> None:
    with pytest.raises(RanksStuck) as error:
        on_two(saves_alone, tmp_path)
    assert "rank 0 in save_state at " in error.value.what
    assert "rank 1 in its return" in error.value.what
    assert "take it out of `if accelerator.is_main_process`" in error.value.fix


# ── chosen ────────────────────────────────────────────────────────────────────────────────────


def tells_its_strategy() -> str:
    return str(Accelerator(cpu=True)._engine.wish)


def test_a_launch_chooses_it_for_who_says_nothing_else() -> None:
    assert on_two(tells_its_strategy, strategy="fsdp")[0].startswith("FSDP(")
    told = on_two(tells_its_strategy, strategy=FSDP(reshard_after_forward=False))[0]
    assert told == str(FSDP(reshard_after_forward=False))
    with pytest.raises(ConfigError, match="strategy='fdsp' is not known"):
        on_two(tells_its_strategy, strategy="fdsp")


@pytest.mark.parametrize(
    ("settings", "policy"), [({}, "auto"), ({"fsdp_auto_wrap_policy": "NO_WRAP"}, "no_wrap")]
)
def test_the_parts_are_found_where_nobody_says_which(
    settings: dict[str, str], policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in RunConfig(strategy="fsdp", **settings).environment().items():
        monkeypatch.setenv(name, value)  # what a launch tells its workers
    wish = Accelerator(cpu=True)._engine.wish
    assert isinstance(wish, FSDP) and wish.auto_wrap_policy == policy


def test_the_environment_and_a_configuration_choose_it() -> None:
    env = {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_TRANSFORMER_CLS_TO_WRAP": "Block",
        "FSDP_SHARDING_STRATEGY": "SHARD_GRAD_OP",
    }
    by_env = on_two(tells_its_strategy, env=env)[0]
    assert by_env.startswith("FSDP(reshard_after_forward=False")
    assert "transformer_cls_names_to_wrap=('Block',)" in by_env
    config = RunConfig(strategy="fsdp", fsdp_offload_params=True)
    by_config = on_two(tells_its_strategy, config=config)[0]
    assert "cpu_offload=True" in by_config

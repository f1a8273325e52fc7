"""What ranks hold of a model in stages, and how a stage lies on several ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from notebook_accel import Accelerator, notebook_launcher
from notebook_accel.config.wishes import DDP, FSDP, Pipeline, TensorParallel
from notebook_accel.ranks.shards import local
from tests.strategies.test_pipeline import X, Y, launch, mse, refusal
from tests.support.nets import PLAN, Net


class Headed(Net):
    config = SimpleNamespace(num_attention_heads=3)


def places(strategy: Any) -> list[Any]:
    accelerator = Accelerator(cpu=True, strategy=strategy)
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = accelerator.prepare(model, optimizer)
    before = num_bytes(model)
    accelerator.forward_backward(model, (X, Y), mse)
    optimizer.step()
    ranks = [
        accelerator.data_parallel_rank,
        accelerator.data_parallel_shard_rank,
        accelerator.pipeline_parallel_rank,
        accelerator.tensor_parallel_rank,
    ]
    states = [one for entry in optimizer.state.values() for one in entry.values()]
    held = sum(local(one).nbytes for one in states if one.dim())
    return [ranks, num_bytes(model) / before, held / 2 / before]


def num_bytes(model: nn.Module) -> int:
    return sum(local(one).untyped_storage().nbytes() for one in model.parameters())


def test_ranks_know_their_places_and_hold_their_parts_only() -> None:
    one_stage = launch(places, Pipeline())
    assert [ranks for ranks, _, _ in one_stage] == [[0, 0, 0, 0], [0, 0, 1, 0]]
    for _, parameters, states in one_stage:
        assert parameters == pytest.approx(1 / 2, abs=0.15)  # and a number for each that is absent
        assert states == pytest.approx(1 / 2, abs=0.1)
    in_parts = launch(places, Pipeline(inside=FSDP()), size=4)
    expected = [[0, 0, 0, 0], [0, 0, 1, 0], [1, 1, 0, 0], [1, 1, 1, 0]]
    assert [ranks for ranks, _, _ in in_parts] == expected
    for _, parameters, states in in_parts:
        assert parameters == pytest.approx(1 / 4, abs=0.17)
        assert states == pytest.approx(1 / 4, abs=0.1)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_ranks_of_divided_layers_hold_their_parts_only() -> None:
    inside = TensorParallel(plan=PLAN)
    divided = launch(places, Pipeline(inside=inside), size=4)
    expected = [[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0], [0, 0, 1, 1]]
    assert [ranks for ranks, _, _ in divided] == expected
    for _, parameters, states in divided:
        assert parameters == pytest.approx(1 / 4, abs=0.17)
        assert states == pytest.approx(1 / 4, abs=0.1)


def loads() -> dict[str, Any]:
    accelerator = Accelerator(cpu=True, strategy=Pipeline())
    torch.manual_seed(0)
    plain = Net()
    model = accelerator.prepare(Net())
    accelerator.forward_backward(model, (X, Y), mse)
    own = accelerator.unwrap_model(model)
    told = {"nothing": bool(own.enter.weight.isnan().all() or own.leave.weight.isnan().all())}
    own.load_state_dict(plain.state_dict())
    told["loaded"] = torch.allclose(model.eval()(X), plain(X))
    state = plain.state_dict()
    short = {name: one for name, one in state.items() if name != "enter.bias"}
    told["missing"] = complaint(lambda: own.load_state_dict(short))
    told["shape"] = complaint(lambda: own.load_state_dict({**state, "leave.bias": torch.ones(3)}))
    return told


def complaint(function: Callable[[], Any]) -> str:
    try:
        function()
    except RuntimeError as error:
        return str(error)
    return "nothing"


def test_a_whole_state_is_loaded_by_every_rank_and_complained_of_by_every_rank() -> None:
    for told in launch(loads):
        assert told["nothing"]
        assert told["loaded"]
        assert "Missing key(s)" in told["missing"] and "enter.bias" in told["missing"]
        assert "size mismatch for leave.bias" in told["shape"]


def trains_two(strategy: Any) -> list[float]:
    """Two models in turns, one of them evaluated first and frozen in part later on."""
    accelerator = Accelerator(cpu=True, strategy=strategy)
    torch.manual_seed(0)
    models = [Net(), Net()]
    optimizers = [torch.optim.AdamW(one.parameters(), lr=0.01) for one in models]
    one, other, *optimizers = accelerator.prepare(*models, *optimizers)
    told = [other.eval()(X).sum().item()]
    other.train()
    for i in range(3):
        for model, optimizer in zip((one, other), optimizers, strict=True):
            told.append(accelerator.forward_backward(model, (X, Y), mse).item())
            told.append(accelerator.clip_grad_norm_(model.parameters(), 0.5).item())
            optimizer.step()
            optimizer.zero_grad()
        for parameter in other.parameters():
            parameter.requires_grad_(i == 0 or parameter.shape[0] != 6)
    return [*told, *other.eval()(X).flatten().tolist()]


def goes_back(strategy: Any, folder: Path) -> list[list[float]]:
    accelerator = Accelerator(cpu=True, strategy=strategy)
    torch.manual_seed(0)
    model = Net()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))

    def learn() -> float:
        loss = accelerator.forward_backward(model, (X, Y), mse)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    learn()
    accelerator.save_state(folder)
    state = copy.deepcopy(optimizer.state_dict())  # whole, on every rank
    assert sorted(state["state"]) == [*range(16)]
    once = [learn() for _ in range(3)]
    accelerator.load_state(folder)
    optimizer.load_state_dict(state)
    twice = [learn() for _ in range(3)]
    again = refusal(lambda: Accelerator(cpu=True, strategy=Pipeline()).prepare(model))
    assert "in the stages of another Accelerator" in again and "build the model again" in again
    return [once, twice]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("inside", [DDP(), FSDP()])
def test_two_models_take_turns_and_a_model_in_stages_goes_back(inside: Any, tmp_path: Path) -> None:
    strategy = Pipeline(inside=inside)
    expected = launch(trains_two, None, size=1)[0]
    for told in launch(trains_two, strategy, size=4 if inside == FSDP() else 2):
        assert told == pytest.approx(expected, abs=1e-5)
    for once, twice in launch(goes_back, strategy, tmp_path):
        assert twice == once


REFUSED = [
    (Net, TensorParallel(), "TensorParallel() has no plan for Net"),
    (Net, TensorParallel(plan={"blocks.*.up": "sequence_parallel"}), "by SequenceParallel in"),
    (Net, TensorParallel(plan={"blocks.0.norm": "colwise"}), "blocks.0.norm (LayerNorm)"),
    (Net, TensorParallel(plan={"leave": "colwise"}), "1 is not divisible by 2"),
    (Headed, TensorParallel(plan=PLAN), "num_attention_heads=3, to be divided over 2 ranks"),
    (Net, FSDP(replicas=3), "Pipeline(stages=2) x FSDP(replicas=3) in a world of 4 ranks"),
    (lambda: nn.Linear(4, 1), DDP(), "but 0 blocks are known in Linear"),
    (lambda: Net().to("meta"), DDP(), "Net is on the meta device, under Pipeline()"),
]


def prepares(model: Any, inside: Any) -> str:
    return refusal(lambda: Accelerator(cpu=True, strategy=Pipeline(inside=inside)).prepare(model()))


def test_what_cannot_lie_inside_a_stage_is_one_error_before_anything_is_wrapped() -> None:
    ranks = launch(lambda: [prepares(model, inside) for model, inside, _ in REFUSED], size=4)
    for told, (_, _, what) in zip(ranks[0], REFUSED, strict=True):
        assert what in told
    assert ranks == ranks[:1] * 4


def evaluates_where_ranks_are_played() -> str:
    accelerator = Accelerator(strategy=Pipeline())
    model = accelerator.prepare(Net())
    accelerator.forward_backward(model, (X, Y), mse)
    return refusal(lambda: model.eval()(X))


def test_a_fake_run_evaluates_no_stages() -> None:
    told = notebook_launcher(evaluates_where_ranks_are_played, (), 2, device="fake")[0]
    assert "a model in stages was called under device='fake'" in told
    assert "leave evaluations out" in told

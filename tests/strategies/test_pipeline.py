"""Pipelines beyond the agreement of their numbers: cutting, evaluating, refusing."""

from __future__ import annotations

import copy
import itertools
import pickle
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from notebook_accel import Accelerator, notebook_launcher, prepare_pippy
from notebook_accel.config.wishes import DDP, FSDP, Pipeline
from notebook_accel.errors import ConfigError, Explained, RunInterrupted
from notebook_accel.strategies import stages
from tests.support.nets import Net

X = torch.arange(24.0).view(6, 4) / 24
Y = torch.arange(6.0)[:, None]
mse = nn.functional.mse_loss


def launch(function: Callable[..., Any], *args: Any, size: int = 2) -> list[Any]:
    return list(notebook_launcher(function, args, size, device="cpu", timeout_s=200))


# ── cutting ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("sizes", "num_stages", "begins"),
    [
        ([1, 1, 1, 1], 2, [2]),
        ([1, 1, 1, 1], 4, [1, 2, 3]),
        ([6, 1, 1, 1], 2, [1]),
        ([1, 1, 1, 6], 2, [3]),
        ([9, 1, 1], 3, [1, 2]),
        ([1, 1, 9], 3, [1, 2]),
        ([1, 1], 1, []),
    ],
)
def test_stages_hold_about_equally_much_and_each_has_a_block(
    sizes: list[int], num_stages: int, begins: list[int]
) -> None:
    model = nn.Module()
    model.blocks = nn.ModuleList(nn.Linear(size, 1, bias=False) for size in sizes)
    assert stages.beginnings(model, num_stages) == [f"blocks.{i}" for i in begins]


def test_a_batch_is_cut_into_equal_parts_as_many_as_can_be() -> None:
    assert [stages.num_microbatches(rows, 4) for rows in (8, 6, 5, 4, 3, 1)] == [4, 3, 1, 4, 3, 1]
    # Two ranks that take turns: in rounds of equally many, and 5 make no such rounds.
    assert [stages.num_microbatches(rows, 5, 2) for rows in (10, 5, 4, 3)] == [2, 1, 4, 3]


def test_a_model_is_as_it_was_after_it_was_cut() -> None:
    model = Net()
    before = model(X)
    for _ in range(2):
        pipe, _ = stages.cut(model, ["blocks.1"], (X,), {})
        assert torch.equal(model(X), before)
    assert not any(
        "forward" in key for one in model.modules() for key in vars(one) if key[0] != "_"
    )
    users = stages.users(model, pipe)
    assert users["enter.weight"] == users["blocks.0.up.bias"] == [0]
    assert users["blocks.1.up.bias"] == users["leave.weight"] == [1]
    assert pipe.get_stage_module(1).leave.weight is model.leave.weight


class Cache:
    """What a model keeps for its next tokens: no tensor, and not traceable."""


class Caching(Net):
    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(use_cache=True)
        self.blocks[0].config = self.config

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {
            "logits": super().forward(x),
            **({"past": Cache()} if self.config.use_cache else {}),
        }


def test_what_a_model_would_keep_for_its_next_tokens_is_no_part_of_its_stages() -> None:
    model = Caching()
    _, structure = stages.cut(model, ["blocks.1"], (X,), {})
    assert set(stages.shaped([X], structure)) == {"logits"}
    assert model.config.use_cache is True and set(model(X)) == {"logits", "past"}
    model.config.use_cache = "always"  # whatever else a model means by that word is its own
    with pytest.raises(ConfigError, match="cannot be traced"):
        stages.cut(model, ["blocks.1"], (X,), {})
    assert model.config.use_cache == "always"


class Again(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks[0](self.blocks[0](self.enter(x)))
        return self.leave(self.blocks[1](x))


def test_a_layer_may_be_called_twice_inside_a_stage() -> None:
    model = Again()
    pipe, _ = stages.cut(model, ["blocks.1"], (X,), {})
    assert stages.users(model, pipe)["blocks.0.up.weight"] == [0]


def test_only_tensors_are_cut_into_micro_batches() -> None:
    with pytest.raises(ConfigError, match="Net in stages is called with 3") as error:
        stages.cut(Net(), ["blocks.1"], (X,), {"layers": 3})
    assert "default of forward()" in str(error.value)


class Telling(Net):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        entered = x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return {"y": self.leave(x), "sum": x + entered}


def test_an_output_has_the_structure_that_the_model_gives_it() -> None:
    pipe, structure = stages.cut(Telling(), ["blocks.1"], (X,), {})
    assert stages.shaped((1, 2), structure) == {"y": 1, "sum": 2}
    with pytest.raises(ConfigError, match="gives 2 things, of which its last stage makes 1"):
        stages.shaped((X,), structure)
    assert pipe.num_stages == 2


class Moody(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x if x.sum() > 0 else -x)


class Backward(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(self.blocks[0](self.enter(x)))  # never through blocks.1


@pytest.mark.parametrize(
    ("model", "what", "fix"),
    [
        (Moody, "Moody cannot be traced: ", "strategy=FSDP()"),
        (Backward, "cut into 1 stages, not 2", "call"),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused(model: Any, what: str, fix: str) -> None:
    made = model()
    with pytest.raises(ConfigError) as error:
        stages.cut(made, ["blocks.1"], (X,), {})
    assert what in error.value.what
    assert fix in str(error.value)
    if model is not Moody:
        made(X)


def test_where_stages_begin_must_be_in_the_model() -> None:
    with pytest.raises(ConfigError, match=r"'blocks\.5', which is not in Net") as error:
        stages.beginnings(Net(), 2, ("blocks.5",))
    assert "write 'blocks." in str(error.value)
    with pytest.raises(ConfigError, match=r"stages=3\), but 2 blocks are known in Net") as error:
        stages.beginnings(Net(), 3)
    assert "split=" in str(error.value)


def test_tensors_of_a_batch_have_equally_many_rows() -> None:
    with pytest.raises(ConfigError, match=r"tensors of \[5, 6\] rows") as error:
        stages.num_rows([X, X[1:]])
    assert "first dimension" in str(error.value)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"stages": 0}, "stages=0"),
        ({"num_microbatches": True}, "num_microbatches=True"),
        ({"schedule": "zigzag"}, "zigzag"),
        ({"schedule": "interleaved"}, "with one stage a rank"),
        ({"stages": 3, "stages_per_rank": 2}, "stages=3, stages_per_rank=2"),
        ({"stages_per_rank": 0}, "stages_per_rank=0"),
        ({"inside": Pipeline()}, "Pipeline(inside=Pipeline("),
        ({"inside": FSDP(cpu_offload=True)}, "inside=FSDP(cpu_offload=True)"),
        ({"inside": DDP(comm_hook="bf16")}, "inside=DDP(comm_hook='bf16')"),
        ({"stages": 3, "split": ("leave",)}, "stages=3) with a split of 1 names"),
    ],
)
def test_a_wish_that_cannot_be_is_refused(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError) as error:
        Pipeline(**fields)
    assert what in str(error.value)


# ── running ───────────────────────────────────────────────────────────────────────────────────


def refusal(function: Callable[[], Any]) -> str:
    try:
        function()
    except Explained as error:
        return str(error)
    return "nothing"


class Skipping(Net):
    """As language models are: each block is given what was computed at the beginning."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        entered = x = self.enter(x)
        for block in self.blocks:
            x = block(x + entered)
        return self.leave(x)


class Reading(Net):
    """Each block is given the input itself, as it was in memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, h = x.mean(1, keepdim=True).mT.expand(x.shape[1], -1).mT, self.enter(x)
        for block in self.blocks:
            h = block(h) + x.sum(1, keepdim=True) + mean.sum(1, keepdim=True)
        return self.leave(h)


def learns_with(wish: Pipeline | None, model: type[Net]) -> list[Any]:
    accelerator = Accelerator(cpu=True, strategy=wish)
    torch.manual_seed(0)
    made = accelerator.prepare(model(depth=4))
    optimizer = accelerator.prepare(torch.optim.AdamW(made.parameters()))
    losses = []
    for _ in range(3):
        losses.append(accelerator.forward_backward(made, (X, Y), mse).item())
        losses.append(accelerator.clip_grad_norm_(made.parameters(), 1.0).item())
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        return [*losses, made.eval()(X).sum().item()]


class Choosing(Net):
    """A mask and a number of each row, which have no gradient, are used in every block."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen, column, h = x > 0.5, (4 * x[:, 0]).long(), self.enter(x)
        for block in self.blocks:
            h = block(h) * chosen.any(1, keepdim=True) + column[:, None] * chosen.sum(1)[:, None]
        return self.leave(h)


WISHES = {
    "two": (2, Pipeline()),
    "in turns": (2, Pipeline(4, stages_per_rank=2)),
    "four": (4, Pipeline(4)),
    "four, in bulk": (4, Pipeline(4, schedule="gpipe")),
    "recomputed": (4, Pipeline(2, inside=FSDP(activation_checkpointing=True))),
}
FEW = ("in turns", "four")


@pytest.mark.parametrize(
    ("model", "wish"),
    [*((Skipping, wish) for wish in WISHES), *itertools.product((Reading, Choosing), FEW)],
)
def test_a_later_stage_takes_what_earlier_ones_do_too(model: type[Net], wish: str) -> None:
    alone = learns_with(None, model)
    size, asked = WISHES[wish]
    for told in launch(learns_with, asked, model, size=size):
        assert told == pytest.approx(alone, rel=1e-4)


def test_what_several_stages_use_goes_from_each_to_the_next_only() -> None:
    model = Skipping(depth=4)
    pipe, _ = stages.cut(model, ["blocks.1", "blocks.2", "blocks.3"], (X,), {})
    assert torch.equal(pipe(X)[0], model(X))
    calls = [node for node in pipe.split_gm.graph.nodes if node.op == "call_module"]
    for number, call in enumerate(calls[:-1]):
        values = [user for user in call.users if user.op == "call_function"] or [call]
        users = {user for value in values for user in value.users}
        assert users == {calls[number + 1]}


class Dropping(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


class Wandering(Dropping):
    """One layer comes first in training, and last after it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.leave = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.first(x)) if self.training else self.first(super().forward(x))


class Normal(Net):
    """Batch norms of which somebody asked that they meet."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[1].norm = nn.SyncBatchNorm(6)


def evaluates_and_refuses() -> dict[str, Any]:
    accelerator = Accelerator(cpu=True, strategy=Pipeline())
    torch.manual_seed(0)
    plain = Dropping().eval()
    model, _ = accelerator.prepare(
        copy.deepcopy(plain).train(), torch.optim.SGD(plain.parameters())
    )
    accelerator.forward_backward(model, (X, Y), mse)
    model.eval()
    old = refusal(model.state_dict)
    whole = accelerator.get_state_dict(model)
    told: dict[str, Any] = {
        "old": old,
        "new": refusal(model.state_dict),
        "whole": [
            torch.equal(one, whole[name]) for name, one in plain.state_dict().items() if whole
        ],
        "outputs": [torch.allclose(model(x), plain(x)) for x in (X, X[:5], x_of(7))],
        "no gradient": not model(X).requires_grad,
    }
    model.train()
    with torch.no_grad():
        told["drops"] = bool((model(X) == 0).any())
    told["called"] = refusal(lambda: model(X))
    told["backward"] = refusal(lambda: accelerator.backward(torch.ones(())))
    told["stranger"] = refusal(lambda: accelerator.forward_backward(Net(), (X, Y), mse))
    told["world"] = refusal(lambda: Accelerator(cpu=True, strategy=Pipeline(stages=3)))
    wandering = accelerator.prepare(Wandering())
    accelerator.forward_backward(wandering, (X, X), mse)
    told["wanders"] = refusal(lambda: wandering.eval()(X))
    met = Normal()
    told["meets"] = refusal(lambda: accelerator.prepare(met))
    met = accelerator.prepare(met.eval())
    told["evaluates"] = bool(met(X).isfinite().all())
    told["meets later"] = refusal(lambda: accelerator.forward_backward(met.train(), (X, Y), mse))
    told["explained"] = "\n".join(accelerator._explanation())
    mine = [name for name, one in model.named_parameters() if one.grad is not None]
    told["own"] = sorted({name.split(".")[0] for name in mine})
    return told


def stays_apart() -> list[bool]:
    """Tell after each of three ways whether the copies of this rank's stages were averaged."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, strategy=Pipeline())
    torch.manual_seed(0)
    model = accelerator.prepare(Net())
    reader = accelerator.process_index // 2
    averaged = []

    def batch() -> None:
        accelerator.forward_backward(model, (X * (reader + 1), Y), mse)

    def compare() -> None:
        grads = [one.grad.flatten() for one in model.parameters() if one.grad is not None]
        sums = accelerator.gather(torch.cat(grads).sum())
        rank = accelerator.process_index
        averaged.append(bool(sums[rank] == sums[(rank + 2) % 4]))
        model.zero_grad()

    with accelerator.no_sync(model):  # a whole window
        for _ in range(2):
            with accelerator.accumulate(model):
                batch()
        compare()
    with accelerator.accumulate(model):  # what is left of a micro-batch inside a window
        with accelerator.no_sync(model):
            batch()
        batch()
        compare()
    with accelerator.accumulate(model):
        batch()
        compare()
    return averaged


def test_copies_of_a_pipeline_stay_apart_in_no_sync_whatever_windows_say() -> None:
    assert launch(stays_apart, size=4) == [[False, False, True]] * 4


def x_of(num_rows: int) -> torch.Tensor:
    return torch.linspace(-1, 1, num_rows * 4).view(num_rows, 4)


def tells_while_half_of_it_is_frozen(strategy: Any) -> list[float]:
    accelerator = Accelerator(cpu=True, strategy=strategy)
    torch.manual_seed(0)
    model = Telling()
    for one in [*model.enter.parameters(), *model.blocks[0].parameters()]:
        one.requires_grad_(False)
    model = accelerator.prepare(model)
    loss = accelerator.forward_backward(model, (X, Y), lambda out, y: mse(out["y"], y))
    norm = accelerator.clip_grad_norm_(model.parameters(), 1e9)
    told = model.eval()(X[:4])
    return [
        loss.item(),
        norm.item(),
        *told["sum"].flatten().tolist(),
        *told["y"].flatten().tolist(),
    ]


def test_a_stage_may_be_frozen_and_outputs_may_be_named() -> None:
    expected = launch(tells_while_half_of_it_is_frozen, None, size=1)[0]
    for told in launch(tells_while_half_of_it_is_frozen, Pipeline()):
        assert told == pytest.approx(expected, abs=1e-5)


def test_every_rank_gets_the_outputs_and_every_misuse_is_explained() -> None:
    ranks = launch(evaluates_and_refuses)
    assert [told["own"] for told in ranks] == [["blocks", "enter"], ["blocks", "leave"]]
    assert [len(told["whole"]) for told in ranks] == [16, 0]
    assert all(ranks[0]["whole"])
    for told in ranks:
        assert told["outputs"] == [True, True, True]
        assert told["no gradient"]
        assert "write accelerator.get_state_dict(model), on all ranks" in told["old"]
        assert "this rank holds only its own stages" in told["new"]
        assert told["drops"]
        for name in ("called", "backward"):
            assert "loss = accelerator.forward_backward(model, (inputs, targets)" in told[name]
        assert "Net was not prepared" in told["stranger"]
        assert "accelerator.prepare(model)" in told["stranger"]
        assert "Pipeline(stages=3) in a world of 2 ranks" in told["world"]
        assert "2 stages, beginning at blocks.1" in told["explained"]
        assert (
            "first.weight was used by rank 0 of the pipeline, and now by rank 1" in told["wanders"]
        )
        assert "pass split=" in told["wanders"]
        for name in ("meets", "meets later"):
            assert "blocks.1.norm is a SyncBatchNorm, under Pipeline()" in told[name]
            assert "leave out nn.SyncBatchNorm.convert_sync_batchnorm" in told[name]
        assert told["evaluates"]


def infers() -> dict[str, Any]:
    torch.manual_seed(0)
    plain = Net().eval()
    expected = plain(X)
    told: dict[str, Any] = {
        "word": refusal(lambda: prepare_pippy(Net(), "enter")),
        "classes": refusal(lambda: prepare_pippy(Net(), no_split_module_classes=["Blok"])),
    }
    for name, arguments in {
        "auto": {},
        "named": {"split_points": ["leave"], "num_chunks": 3, "gather_output": True},
        "classes that stay whole": {"no_split_module_classes": ["LayerNorm"]},
    }.items():
        model = prepare_pippy(copy.deepcopy(plain), example_args=(X,), **arguments)
        with torch.no_grad():
            told[name] = torch.allclose(model(X), expected, atol=1e-6)
    return told


@pytest.mark.parametrize("size", [1, 2])
def test_prepare_pippy_infers_in_stages(size: int) -> None:
    for told in launch(infers, size=size):
        assert told["auto"]
        assert "write split_points=['enter']" in told["word"]
        if size > 1:
            assert told["named"]
            assert told["classes that stay whole"]
            assert "write 'Block'" in told["classes"]


def trains_forever() -> None:
    accelerator = Accelerator(cpu=True, strategy=Pipeline())
    model = Net()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    while True:
        accelerator.forward_backward(model, (X, Y), mse)
        optimizer.step()
        optimizer.zero_grad()


def test_a_stopped_run_ends_and_salvages_no_half_of_a_model() -> None:
    run = notebook_launcher(trains_forever, (), 2, device="cpu", timeout_s=100, block=False)
    end = time.monotonic() + 60
    while "loss" not in run.history and time.monotonic() < end:
        time.sleep(0.05)
    run.stop()
    with pytest.raises(RunInterrupted) as error:
        run.wait(60)
    assert error.value.result.salvaged == []
    assert error.value.result.history["loss"]


def gives_its_model_away(strategy: Any, learns: bool) -> dict[str, Any]:
    accelerator = Accelerator(cpu=True, strategy=strategy)
    torch.manual_seed(0)
    model = Net()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    if learns:
        accelerator.forward_backward(model, (X, Y), mse)
        optimizer.step()
        assert "write accelerator.get_state_dict(model)" in refusal(lambda: pickle.dumps(model))
    return {"model": model, "state": accelerator.get_state_dict(model, unwrap=not learns)}


@pytest.mark.parametrize("learns", [False, True])
def test_a_model_in_stages_comes_home_whole(learns: bool) -> None:
    first, second = launch(gives_its_model_away, Pipeline(), learns)
    model = first["model"]
    assert type(model) is Net
    assert all(torch.equal(one, first["state"][name]) for name, one in model.state_dict().items())
    assert not model(X).isnan().any()
    assert second["state"] == {}


def trains(strategy: Any) -> list[float]:
    accelerator = Accelerator(cpu=True, strategy=strategy)
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = accelerator.prepare(model, optimizer)
    numbers = []
    for num_rows in (8, 8, 6, 8, 5):
        x = x_of(num_rows)
        loss = accelerator.forward_backward(model, (x, {"y": x[:, :1].tanh()}), of_dict)
        norm = accelerator.clip_grad_norm_(model.parameters(), 0.5, float("inf"))
        optimizer.step()
        optimizer.zero_grad()
        numbers += [loss.item(), norm.item()]
    state = accelerator.get_state_dict(model)
    return [*numbers, *(v for one in state.values() for v in one.flatten().tolist())]


def of_dict(outputs: torch.Tensor, targets: dict[str, torch.Tensor]) -> torch.Tensor:
    return mse(outputs, targets["y"])


SPLIT = ("blocks.0", "blocks.1", "leave")


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_four_stages_train_as_one_device_does(schedule: str) -> None:
    strategy = Pipeline(4, num_microbatches=8, schedule=schedule, split=SPLIT)
    expected = launch(trains, None, size=1)[0]
    run = notebook_launcher(trains, (None,), 4, device="cpu", timeout_s=200, strategy=strategy)
    for told in run:
        assert told == pytest.approx(expected[: len(told)], abs=1e-5)
    assert len(run[0]) == len(expected)
    assert len(run.history["loss"]) == 5


# ── fp16 ──────────────────────────────────────────────────────────────────────────────────────


def overflows_on_rank_1() -> Any:
    accelerator = Accelerator(mixed_precision="fp16", strategy=Pipeline(stages=2))
    torch.manual_seed(0)
    model = Net()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    accelerator.forward_backward(model, (X, Y), mse)
    if accelerator.process_index == 1:
        grads = [one.grad for group in optimizer.param_groups for one in group["params"]]
        next(one for one in grads if one is not None).view(-1)[0] = float("inf")
    optimizer.step()
    return accelerator.optimizer_step_was_skipped, accelerator.scaler.get_scale()


def test_an_overflow_in_one_stage_skips_the_step_of_all_also_where_nothing_is_clipped() -> None:
    found = launch(overflows_on_rank_1)
    assert found == [(True, 2.0**15)] * 2

"""A weight of several stages stays one: curves, norms and checkpoints are the single device's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from notebook_accel import Accelerator, Megatron, notebook_launcher
from notebook_accel.config.handlers import GradScalerKwargs
from notebook_accel.config.wishes import FSDP, Pipeline, SingleDevice, Strategy, TensorParallel
from notebook_accel.errors import ConfigError
from tests.support.nets import Net, Words
from tests.support.pipelines import agree

SPLIT = ("blocks.0", "blocks.1", "head")
BLOCKS = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}
DIVIDED = {**BLOCKS, "words": "embedding_rowwise", "head": "colwise_rep"}
PIPELINES: dict[str, Strategy] = {
    "two stages": Pipeline(),
    "by a plugin's words": Megatron(pp_degree=2),
    "interleaved": Pipeline(4, split=SPLIT, stages_per_rank=2),
    "four stages": Pipeline(4, split=SPLIT),
    "in parts": Pipeline(inside=FSDP()),
    "divided": Pipeline(inside=TensorParallel(plan=DIVIDED)),
    "whole beside divided": Pipeline(inside=TensorParallel(plan=BLOCKS)),
}
# accumulation, precision, clip
SETTINGS = [(1, "no", 0.1), (2, "no", 1e9), (2, "bf16", 0.1), (2, "fp16", 0.1)]
TOLERANCES = {"no": 1e-5, "bf16": 5e-2, "fp16": 5e-3}
QUICK = {2: ("two stages", "interleaved"), 4: ("in parts", "divided")}
THOROUGH = {
    2: ("two stages", "by a plugin's words", "interleaved"),
    4: ("two stages", "four stages", "in parts", "divided", "whole beside divided"),
}


class Run:
    """Eight updates on 8 rows of words each, on however many ranks."""

    def __init__(self, strategy: Strategy, accumulate: int = 1, precision: str = "no") -> None:
        self.accelerator = Accelerator(
            cpu=True,
            strategy=strategy,
            gradient_accumulation_steps=accumulate,
            mixed_precision=precision,
            kwargs_handlers=[GradScalerKwargs(init_scale=256.0)],
        )
        torch.manual_seed(self.accelerator.process_index)  # all start as the first rank
        model = Words()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        torch.manual_seed(1)
        self.batches = torch.randint(0, 12, (8, 8, 5)).chunk(8)

    def learn(self, ids: torch.Tensor) -> float:
        layout = self.accelerator._engine.layout
        mine = ids.chunk(layout.data_size)[layout.data_rank]
        loss = self.accelerator.forward_backward(self.model, (mine, mine.roll(-1, 1)), next_word)
        return self.accelerator.reduce(loss, "mean").item()

    def update(self, ids: torch.Tensor, clip: float) -> list[float]:
        """Give the loss and the gradient norm."""
        losses, norm = [], float("nan")
        for part in ids.squeeze(0).chunk(self.accelerator.gradient_accumulation_steps):
            with self.accelerator.accumulate(self.model):
                losses.append(self.learn(part))
                if self.accelerator.sync_gradients:
                    norm = self.accelerator.clip_grad_norm_(self.model.parameters(), clip).item()
                self.optimizer.step()
                self.optimizer.zero_grad()
        return [sum(losses) / len(losses), norm]

    def updates(self, first: int, last: int, clip: float = 0.1) -> list[float]:
        return [one for ids in self.batches[first:last] for one in self.update(ids, clip)]

    def parameters(self) -> list[float]:
        state = self.accelerator.get_state_dict(self.model)
        if state:
            assert torch.equal(state["words.weight"], state["head.weight"])
        return [value for one in state.values() for value in one.flatten().tolist()]


def next_word(logits_BTV: torch.Tensor, ids_BT: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits_BTV.flatten(0, 1), ids_BT.flatten())


def train(strategy: Strategy, accumulate: int, precision: str, clip: float) -> list[float]:
    run = Run(strategy, accumulate, precision)
    return [*run.updates(0, 4, clip), *run.parameters()]


def alone(settings: list[tuple]) -> dict[tuple, list[float]]:
    return {setting: train(SingleDevice(), *setting) for setting in settings}


def in_stages(names: tuple[str, ...], settings: list[tuple]) -> dict[tuple, list[float]]:
    return {(name, *one): train(PIPELINES[name], *one) for name in names for one in settings}


def check(sizes: dict[int, tuple[str, ...]], settings: list[tuple]) -> None:
    agree(sizes, settings, alone, in_stages, TOLERANCES)


def test_a_weight_of_two_stages_is_trained_as_one() -> None:
    check(QUICK, [(2, "no", 0.1)])


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("size", THOROUGH)
def test_a_weight_of_several_stages_is_trained_as_one_in_every_setting(size: int) -> None:
    check({size: THOROUGH[size]}, SETTINGS)


def adds_up_in_every_order(strategy: Strategy) -> list[float]:
    """Batch after batch with no window; a part of one, and all of one, in ``no_sync``."""
    run = Run(strategy)

    def norm() -> float:
        return run.accelerator.clip_grad_norm_(run.model.parameters(), 1e9).item()

    found = []
    for ids in run.batches[:3]:
        run.learn(ids.squeeze(0))
        found.append(norm())
    run.optimizer.zero_grad()
    with run.accelerator.no_sync(run.model):
        run.learn(run.batches[3].squeeze(0))
    run.learn(run.batches[4].squeeze(0))
    found.append(norm())
    run.optimizer.step()
    run.optimizer.zero_grad()
    with run.accelerator.no_sync(run.model):
        for ids in run.batches[5:7]:
            run.learn(ids.squeeze(0))
        found.append(norm())
        run.optimizer.step()
    run.optimizer.zero_grad()
    return [*found, *run.updates(7, 8), *run.parameters()]


def test_gradients_of_a_tied_weight_are_added_up_once_in_whatever_order_they_come() -> None:
    expected = notebook_launcher(adds_up_in_every_order, (SingleDevice(),), 1, device="cpu")[0]
    run = notebook_launcher(adds_up_in_every_order, (Pipeline(),), 2, device="cpu")
    for numbers in run:
        assert numbers == pytest.approx(expected[: len(numbers)], abs=1e-5)
    assert len(run[0]) == len(expected)


def trains_saves_and_evaluates(strategy: Strategy, folder: Path) -> dict[str, Any]:
    run = Run(strategy)
    run.updates(0, 4)
    run.accelerator.save_state(folder)
    run.accelerator.save_model(run.model, folder / "export")
    run.model.eval()
    with torch.no_grad():
        logits = run.model(run.batches[0].squeeze(0)).sum().item()
    run.model.train()
    return {"rest": [*run.updates(4, 8), *run.parameters()], "logits": logits, "model": run.model}


def loads_and_goes_on(strategy: Strategy, folders: list[Path]) -> list[list[float]]:
    found = []
    for folder in folders:
        run = Run(strategy)
        run.accelerator.load_state(folder)
        found.append([*run.updates(4, 8), *run.parameters()])
    return found


def test_a_tied_model_in_stages_saves_loads_elsewhere_and_comes_home_tied(tmp_path: Path) -> None:
    ways: dict[str, tuple[int, Strategy]] = {
        "alone": (1, SingleDevice()),
        "stages": (2, Pipeline()),
    }
    told = {}
    for name, (size, wish) in ways.items():
        run = notebook_launcher(
            trains_saves_and_evaluates, (wish, tmp_path / name), size, device="cpu"
        )
        told[name] = run[0]
    expected = told["alone"]["rest"]
    assert told["stages"]["rest"] == pytest.approx(expected, abs=1e-5)
    assert told["stages"]["logits"] == pytest.approx(told["alone"]["logits"], abs=1e-3)
    home = told["stages"]["model"]
    assert home.words.weight is home.head.weight
    for size, wish in ways.values():
        folders = [tmp_path / name for name in ways]
        run = notebook_launcher(loads_and_goes_on, (wish, folders), size, device="cpu")
        for found in run[0]:
            assert found == pytest.approx(expected, abs=1e-5)


class Again(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in (*self.blocks, self.blocks[0]):
            x = block(x) if block is not self.blocks[0] else block(self.enter(x[:, :4]))
        return self.leave(x)


def comes_back_to_a_layer(strategy: Strategy) -> list[float]:
    accelerator = Accelerator(cpu=True, strategy=strategy)
    torch.manual_seed(0)
    model = Again()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.02))
    x = torch.linspace(-1, 1, 32).view(8, 4)
    found = []
    for _ in range(3):
        loss = accelerator.forward_backward(model, (x, x[:, :1]), nn.functional.mse_loss)
        found += [loss.item(), accelerator.clip_grad_norm_(model.parameters(), 0.1).item()]
        optimizer.step()
        optimizer.zero_grad()
    return found


@pytest.mark.slow
def test_layers_that_several_stages_call_are_trained_as_one() -> None:
    expected = notebook_launcher(comes_back_to_a_layer, (SingleDevice(),), 1, device="cpu")[0]
    for found in notebook_launcher(comes_back_to_a_layer, (Pipeline(),), 2, device="cpu"):
        assert found == pytest.approx(expected, abs=1e-5)


def writes_like_gpt2(strategy: Strategy) -> list[float]:
    """Transformers' GPT-2, whose head is its words."""
    from transformers import GPT2Config, GPT2LMHeadModel

    accelerator = Accelerator(cpu=True, strategy=strategy)
    torch.manual_seed(0)
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    sizes = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 32, "vocab_size": 64}
    model = GPT2LMHeadModel(GPT2Config(**sizes, **still))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    ids_BT = torch.randint(0, 64, (8, 16))
    found = []
    for _ in range(3):
        loss = accelerator.forward_backward(
            model, (ids_BT, ids_BT.roll(-1, 1)), lambda out, ids: next_word(out["logits"], ids)
        )
        found += [loss.item(), accelerator.clip_grad_norm_(model.parameters(), 1.0).item()]
        optimizer.step()
        optimizer.zero_grad()
    return found


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_gpt2_of_transformers_trains_in_stages_as_it_comes() -> None:
    pytest.importorskip("transformers", reason="the model is one of Transformers'")
    expected = notebook_launcher(writes_like_gpt2, (SingleDevice(),), 1, device="cpu")[0]
    for found in notebook_launcher(writes_like_gpt2, (Pipeline(),), 2, device="cpu"):
        assert found == pytest.approx(expected, abs=1e-4)


def divides_in_two_ways() -> None:
    plan = {**BLOCKS, "head": "colwise_rep"}
    Accelerator(cpu=True, strategy=Pipeline(inside=TensorParallel(plan=plan))).prepare(Words())


def test_a_tied_weight_that_is_divided_in_two_ways_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        notebook_launcher(divides_in_two_ways, (), 4, device="cpu")
    assert "words.weight and head.weight are one weight" in str(error.value)
    assert "name both in the plan, or none" in str(error.value)

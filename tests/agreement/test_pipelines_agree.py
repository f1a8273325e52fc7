"""A pipeline equals the single device: one curve, one gradient norm, the same parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from notebook_accel import Accelerator, notebook_launcher
from notebook_accel.config.wishes import (
    FSDP,
    Pipeline,
    SingleDevice,
    Strategy,
    TensorParallel,
)
from tests.agreement.test_strategies_agree import PRECISIONS, train
from tests.support.nets import PLAN
from tests.support.pipelines import agree

SPLIT = ("blocks.0", "blocks.1", "leave")
DIVIDED = TensorParallel(plan=PLAN)
PIPELINES = {
    "1f1b": Pipeline(),
    "gpipe": Pipeline(schedule="gpipe", num_microbatches=4),
    "interleaved": Pipeline(4, schedule="interleaved", split=SPLIT, stages_per_rank=2),
    "recomputing": Pipeline(inside=FSDP(activation_checkpointing=True)),
    "all forwards first": Pipeline(4, schedule="gpipe", split=SPLIT, stages_per_rank=2),
    "in parts": Pipeline(inside=FSDP()),
    "in copies of parts": Pipeline(inside=FSDP(replicas=2)),
    "interleaved in parts": Pipeline(4, split=SPLIT, stages_per_rank=2, inside=FSDP()),
    "divided": Pipeline(inside=DIVIDED),
}
# accumulation, precision, clip, rows: 28 end in a window of 4 rows
SETTINGS = [(1, "no", 0.1, 24), (2, "no", 1e9, 28), (2, "bf16", 0.1, 28), (2, "fp16", 0.1, 28)]
# A gradient near nothing has either sign, and AdamW moves a parameter by it.
TOLERANCES = {**PRECISIONS, "bf16": 5e-2}
FEW = [(2, "no", 0.1, 28)]
QUICK = {2: ("interleaved",), 4: ("divided",)}
THOROUGH = {
    2: ("1f1b", "gpipe", "interleaved", "recomputing", "all forwards first"),
    4: ("1f1b", "in parts", "interleaved in parts", "divided"),
    8: ("divided", "in copies of parts"),  # three axes
}


def alone(settings: list[tuple]) -> dict[tuple, list[float]]:
    return {setting: train(SingleDevice(), *setting) for setting in settings}


def in_stages(names: tuple[str, ...], settings: list[tuple]) -> dict[tuple, list[float]]:
    possible = [one for one in settings if 8 % (one[0] * readers()) == 0]
    return {
        (name, *setting): train(PIPELINES[name], *setting) for name in names for setting in possible
    }


def readers() -> int:
    return Accelerator(cpu=True).num_processes // 2


def check(sizes: dict[int, tuple[str, ...]], settings: list[tuple]) -> None:
    agree(sizes, settings, alone, in_stages, TOLERANCES)


def test_every_kind_of_pipeline_is_the_single_device() -> None:
    check(QUICK, FEW)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("size", THOROUGH)
def test_every_pipeline_is_the_single_device_in_every_setting(size: int) -> None:
    check({size: THOROUGH[size]}, SETTINGS)


def learns_words(strategy: Strategy | None) -> list[float]:
    """A language model of Transformers, which brings its own plan of divided layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    accelerator = Accelerator(cpu=True, strategy=strategy)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "vocab_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    ids_BT = torch.randint(0, 64, (8, 16))
    losses = []
    for _ in range(3):
        losses.append(accelerator.forward_backward(model, (ids_BT, ids_BT), next_word).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def next_word(outputs: Any, ids_BT: torch.Tensor) -> torch.Tensor:
    logits_BTV = outputs["logits"]
    return nn.functional.cross_entropy(logits_BTV[:, :-1].flatten(0, 1), ids_BT[:, 1:].flatten())


LANGUAGE = {
    "divided layers": (4, Pipeline(inside=TensorParallel())),
    "four stages": (4, Pipeline(4)),
    "in turns": (2, Pipeline(4, stages_per_rank=2)),
}


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", LANGUAGE)
def test_a_language_model_of_transformers_runs_in_stages(name: str) -> None:
    pytest.importorskip("transformers", reason="the model is one of Transformers'")
    size, wish = LANGUAGE[name]
    expected = notebook_launcher(learns_words, (None,), 1, device="cpu")[0]
    run = notebook_launcher(learns_words, (wish,), size, device="cpu")
    for losses in run:
        assert losses == pytest.approx(expected, abs=1e-5)

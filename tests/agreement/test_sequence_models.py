"""Models of the library transformers, their sequences divided, equal the single device unchanged.

Their positions, masks and losses are those of whole sequences: nothing in the loop says so.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from notebook_accel import Accelerator, ParallelismConfig, SequenceParallel, notebook_launcher
from notebook_accel.config.wishes import FSDP, SingleDevice, Strategy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
pytest.importorskip("transformers", reason="needs transformers: make test-slow installs it")

WIDTHS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
PADDINGS = ("none", "right", "left")
STRATEGIES: dict[str, Strategy] = {
    "heads": SequenceParallel(2),
    "keys": SequenceParallel(2, exchange="keys"),
    "fsdp": SequenceParallel(2, data=FSDP()),
}
CASES = [
    *itertools.product(("llama", "bert"), PADDINGS, (False,)),
    ("gpt2", "left", False),
    ("llama", "none", True),
]


def build(kind: str) -> nn.Module:
    import transformers as hf

    torch.manual_seed(0)
    settings: dict[str, Any] = {"vocab_size": 50, "attn_implementation": "sdpa"}
    tokens: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2}
    if kind == "llama":
        config: Any = hf.LlamaConfig(
            **settings, **WIDTHS, intermediate_size=48, num_key_value_heads=2
        )
        return hf.LlamaForCausalLM(config)
    if kind == "gpt2":
        none = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
        config = hf.GPT2Config(**settings, **tokens, n_embd=32, n_layer=2, n_head=4, **none)
        return hf.GPT2LMHeadModel(config)
    none = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    return hf.BertForMaskedLM(hf.BertConfig(**settings, **WIDTHS, **none, intermediate_size=48))


def sentences(padding: str) -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    words = torch.randint(0, 50, (12, 16))
    places = torch.arange(16)
    missing = torch.arange(12)[:, None] % 5 * (padding != "none")
    real = places < 16 - missing if padding == "right" else places >= missing
    labels = words.masked_fill(~real, -100)
    return [
        {"input_ids": a, "attention_mask": b, "labels": c}
        for a, b, c in zip(words, real.long(), labels, strict=True)
    ]


def train(strategy: Strategy, kind: str, padding: str, recomputes: bool) -> list[float]:
    accelerator = Accelerator(cpu=True, strategy=strategy)
    model: Any = build(kind)
    if recomputes:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(sentences(padding), batch_size=4)
    )
    told = []
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        told += [loss.item(), accelerator.clip_grad_norm_(model.parameters(), 0.5).item()]
        optimizer.step()
        optimizer.zero_grad()
    return told


def trains(ways: dict[str, Strategy]) -> dict[tuple, list[float]]:
    return {
        (name, *case): train(strategy, *case)
        for name, strategy in ways.items()
        for case in CASES
        if (name, case[0]) != ("fsdp", "bert")  # FSDP2 does not take its tied weights
    }


def test_models_train_as_on_one_device_each_rank_telling_the_loss_of_the_whole() -> None:
    alone = notebook_launcher(trains, ({"one": SingleDevice()},), 1, device="cpu")[0]
    told = notebook_launcher(trains, (STRATEGIES,), 2, device="cpu", timeout_s=300)
    for rank in range(2):
        for case, found in told[rank].items():
            assert found == pytest.approx(alone[("one", *case[1:])], abs=2e-5), (rank, case)


def as_accelerate_has_it(num_ranks: int) -> list[float]:
    """Train by the loop that Accelerate's guide to sequence parallelism shows."""
    import torch.distributed.nn.functional as among

    axes = ParallelismConfig(sp_size=num_ranks) if num_ranks > 1 else None
    accelerator = Accelerator(cpu=True, parallelism_config=axes)
    model: Any = build("llama")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(sentences("right"), batch_size=4)
    )
    told = []
    for batch in loader:
        loss = model(**batch).loss
        if axes is not None:
            group = accelerator.torch_device_mesh["sp"].get_group()
            losses = among.all_gather(loss, group=group)
            counts = among.all_gather((batch["shift_labels"] != -100).sum(), group=group)
            pairs = zip(losses, counts, strict=True)
            loss = sum(one * num for one, num in pairs if num > 0) / sum(counts)
        accelerator.backward(loss)
        told += [loss.item(), accelerator.clip_grad_norm_(model.parameters(), 0.5).item()]
        optimizer.step()
        optimizer.zero_grad()
    return told


@pytest.mark.filterwarnings("ignore:.*all_gather.*:FutureWarning")
def test_a_loop_that_weighs_losses_itself_is_right_too() -> None:
    alone = notebook_launcher(as_accelerate_has_it, (1,), 1, device="cpu")[0]
    divided = notebook_launcher(as_accelerate_has_it, (2,), 2, device="cpu", timeout_s=200)
    assert divided[0] == pytest.approx(alone, abs=2e-5)
    assert divided[1] == divided[0]


def generates() -> list[list[int]]:
    accelerator = Accelerator(cpu=True, strategy=SequenceParallel(2))
    model: Any = build("llama")
    prompt = torch.tensor([[3, 4, 5]])
    before = model.generate(prompt, max_new_tokens=4, do_sample=False).tolist()
    model, loader = accelerator.prepare(model, DataLoader(sentences("none"), batch_size=4))
    for batch in loader:
        model(**batch)
    inner = accelerator.unwrap_model(model)
    return [before, inner.generate(prompt, max_new_tokens=4, do_sample=False).tolist()]


def test_text_is_generated_from_whole_prompts() -> None:
    before, after = notebook_launcher(generates, (), 2, device="cpu", timeout_s=200)[0]
    assert before == after

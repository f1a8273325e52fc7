"""What a forward pass keeps, told from fakes: against what a real one keeps, byte by byte."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from notebook_accel.errors import ConfigError
from notebook_accel.strategies.measure import measure


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x_BTC: Tensor) -> Tensor:
        return x_BTC + self.drop(self.down(F.gelu(self.up(self.norm(x_BTC)))))


class Net(nn.Module):
    tp_plan: ClassVar = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}

    def __init__(self, width: int = 16, depth: int = 3, words: int = 50) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, words)

    def forward(self, x_BT: Tensor) -> Tensor:
        x_BTC = self.tokens(x_BT)
        for block in self.blocks:
            x_BTC = block(x_BTC)
        return self.head(x_BTC)


def loss_fn(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    return F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())


def kept_by_a_real_pass(
    model: nn.Module, batch: tuple[Tensor, Tensor], precision: str, weight_copies: int
) -> int:
    """Count unique storages that autograd saves, less the parameters' own."""
    seen: dict[int, int] = {}
    alive = []

    def note(one: Tensor) -> Tensor:
        alive.append(one)
        seen[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
        return one

    keep = torch.autograd.graph.saved_tensors_hooks(note, lambda one: one)
    with keep:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            out = model(batch[0])
        loss_fn(out.float(), batch[1])
    own = {one.untyped_storage().data_ptr() for one in model.parameters()}
    return sum(size for place, size in seen.items() if place not in own) - weight_copies


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_what_a_forward_pass_keeps_is_told_to_the_byte(precision: str) -> None:
    model = Net()
    batch = (torch.randint(0, 50, (4, 7)), torch.randint(0, 50, (4, 7)))
    told = measure(model, batch, precision, loss_fn).kept
    assert told is not None
    assert told.total == kept_by_a_real_pass(model, batch, precision, told.copies)
    linear = sum(one.numel() for name, one in model.named_parameters() if "norm" not in name)
    halves = 2 * (linear - 50 * 16)  # of all linear layers, not of the embedding
    assert told.copies <= halves * (precision == "bf16")
    assert told.copies > 0.9 * halves * (precision == "bf16") - 1


def test_the_model_on_the_meta_device_tells_the_same_and_nothing_of_it_changes() -> None:
    model = Net().eval()
    before = copy.deepcopy(model.state_dict())
    state = torch.random.get_rng_state()
    batch = torch.randint(0, 50, (4, 7))
    with torch.device("meta"):
        far = Net()
    generator = torch.random.get_rng_state()
    assert measure(model, batch) == measure(far, batch.to("meta"))
    assert not model.training and all(one.grad is None for one in model.parameters())
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert not any(one._forward_hooks for one in model.modules())
    assert torch.equal(generator, torch.random.get_rng_state()) and len(state)


def test_each_weight_knows_its_block_and_the_dim_that_tensor_parallelism_divides() -> None:
    sizes = measure(Net(), torch.zeros(2, 3, dtype=torch.long))
    assert (sizes.num_blocks, sizes.has_plan) == (3, True)
    assert [one.block for one in sizes.weights] == [-1] + 6 * [0] + 6 * [1] + 6 * [2] + [-1, -1]
    assert [one.cut for one in sizes.weights[1:7]] == [None, None, 0, 0, 1, None]
    kept = sizes.kept
    assert kept is not None and kept.batch == "2 x 3"
    # What "up" gives and what becomes of it, until "down" has added it up again.
    assert kept.divided == 3 * 2 * (2 * 3 * 64 * 4)


def test_checkpointing_keeps_inputs_of_blocks_and_one_block_at_a_time() -> None:
    kept = measure(Net(depth=5), torch.zeros(2, 3, dtype=torch.long)).kept
    assert kept is not None and len(set(kept.blocks)) == 1
    width = 2 * 3 * 16 * 4  # bytes of what goes from block to block
    assert kept.inputs == 5 * width
    assert kept.recomputed == kept.outside + 5 * width + kept.blocks[0] < kept.total


@pytest.mark.parametrize(
    ("batch", "shapes"),
    [
        (torch.zeros(8, 10), "8 x 10"),
        ({"x": torch.zeros(8, 10)}, "8 x 10"),
        ((torch.zeros(8, 10), torch.zeros(8)), "8 x 10, 8"),
        ([torch.zeros(8, 10)], "8 x 10"),
    ],
)
def test_a_batch_is_what_the_model_is_called_with_or_a_pair(batch: Any, shapes: str) -> None:
    class Plain(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    kept = measure(Plain(10, 2), batch).kept
    assert kept is not None and (kept.total, kept.batch) == (8 * 10 * 4, shapes)


def test_a_model_that_fails_on_the_input_is_still_counted_without_torchs_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sizes = measure(nn.Linear(10, 2), torch.zeros(3, 7))
    assert sizes.num_parameters == 22 and sizes.kept is None
    assert "its forward pass failed on 3 x 7: " in sizes.why
    assert caplog.records == []


def test_a_failure_without_words_on_a_batch_without_shapes_is_told_by_its_kind() -> None:
    class Mute(nn.Linear):
        def forward(self, x: object) -> Tensor:
            raise TypeError

    why = measure(Mute(10, 2), "a word").why
    assert why == "its forward pass failed on this batch: TypeError"


def test_tied_parameters_count_once_and_frozen_ones_do_not_learn() -> None:
    model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50, bias=False))
    model[1].weight = model[0].weight
    assert measure(model).num_parameters == 400
    model.requires_grad_(False)
    assert measure(model, torch.zeros(3, dtype=torch.long)).num_trainable == 0


def test_values_that_a_forward_pass_looks_at_are_told_as_unknown() -> None:
    class Peeks(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if x.sum().item() > 0 else x

    sizes = measure(Peeks(10, 2), torch.ones(3, 10))
    assert sizes.kept is None and "DataDependent" in sizes.why


def test_what_has_no_shapes_and_a_loss_without_targets_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"weight of LazyLinear has no shape yet"):
        measure(nn.LazyLinear(3))
    with pytest.raises(ConfigError, match=r"no pair but Tensor(.|\n)*\(inputs, targets\)"):
        measure(nn.Linear(2, 2), torch.ones(1, 2), "no", F.mse_loss)

"""Activation checkpointing: a forward that is computed twice is one forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from notebook_accel import Accelerator, notebook_launcher
from notebook_accel.config.wishes import FSDP, Pipeline, Strategy
from notebook_accel.strategies.sharding import recompute


class Cached(nn.Module):
    """Blocks that write into what they are given to go on from, as transformers' do."""

    def __init__(self, by_position: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Writing() for _ in range(2))
        self.by_position = by_position

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Notes]:
        cache = Notes()
        for block in self.blocks:
            x = block(x, cache) if self.by_position else block(x, cache=cache)
        return x, cache


class Notes:
    """A cache, which says by this method that it is one."""

    def __init__(self) -> None:
        self.noted: dict[int, torch.Tensor] = {}

    def get_seq_length(self) -> int:
        return len(self.noted)


class Writing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, cache: Notes | None = None) -> torch.Tensor:
        if cache is not None and id(self) in cache.noted:
            return x + cache.noted[id(self)]
        keys = self.keys(x).tanh()
        if cache is not None:
            cache.noted[id(self)] = keys
        return x + keys


@pytest.mark.parametrize("by_position", [True, False])
def test_blocks_that_write_into_a_cache_can_be_computed_again(by_position: bool) -> None:
    torch.manual_seed(0)
    model, x = Cached(by_position), torch.randn(3, 4)

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        model(x)[0].sum().backward()
        return [one.grad.clone() for one in model.parameters() if one.grad is not None]

    once = gradients()
    assert len(once) == 4
    recompute(model, list(model.blocks))
    torch.testing.assert_close(gradients(), once)
    with torch.no_grad():
        assert len(model(x)[1].noted) == 2  # to generate, it is there


class Normed(nn.Module):
    """Blocks with statistics of batches, and a count of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Counting() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Counting(nn.Module):
    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += 1
        return x + self.norm(self.up(x)).relu()


def statistics(strategy: Strategy | None) -> dict[str, Any]:
    """Train twice, and give what batches have left in buffers."""
    accelerator = Accelerator(cpu=True, strategy=strategy)
    torch.manual_seed(0)
    model = accelerator.prepare(Normed())
    for x in torch.randn(2, 8, 4):
        accelerator.forward_backward(model, (x, x), nn.functional.mse_loss)
    state = accelerator.get_state_dict(model)
    return {name: one for name, one in state.items() if "norm.run" in name or one.dim() == 0}


@pytest.mark.parametrize(
    "wish",
    [
        FSDP(activation_checkpointing=True),
        FSDP(auto_wrap_policy="no_wrap", activation_checkpointing=True),
        Pipeline(num_microbatches=1, inside=FSDP(activation_checkpointing=True)),
    ],
    ids=str,
)
def test_statistics_of_batches_are_kept_once_though_forwards_are_computed_twice(
    wish: Strategy,
) -> None:
    alone = statistics(None)
    assert alone["blocks.0.seen"] == 2
    run = notebook_launcher(statistics, (wish,), 2, device="cpu")
    torch.testing.assert_close(run[0], alone, rtol=1e-5, atol=1e-6)


class Listed(nn.Module):
    """Two unlike parts in a list: there is no block that is found by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Counting(), Another()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = part(x)
        return x


class Another(Counting):
    pass


def num_forwards(wish: FSDP, kind: type[nn.Module]) -> int:
    calls = []
    accelerator = Accelerator(cpu=True, strategy=wish)
    model = kind()
    for one in model.modules():
        if isinstance(one, Counting):
            one.up.register_forward_hook(lambda *_: calls.append(1))
    model = accelerator.prepare(model)
    x = torch.randn(8, 4)
    accelerator.forward_backward(model, (x, x), nn.functional.mse_loss)
    return len(calls)


@pytest.mark.parametrize("kind", [Normed, Listed])
@pytest.mark.parametrize("policy", ["auto", "no_wrap"])
def test_what_is_gathered_at_once_is_computed_again_too(policy: str, kind: type[nn.Module]) -> None:
    def counts() -> list[int]:
        wishes = (
            FSDP(auto_wrap_policy=policy, activation_checkpointing=on) for on in (True, False)
        )
        return [num_forwards(wish, kind) for wish in wishes]

    assert list(notebook_launcher(counts, (), 2, device="cpu")) == [[4, 2], [4, 2]]

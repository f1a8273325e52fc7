"""The model of the agreement tests: a list of like blocks, as transformers have them."""

from __future__ import annotations

import torch
from torch import nn

# How tensor parallelism divides it.
PLAN = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise", "enter": "colwise_rep"}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(self.norm(x)).tanh())


class Net(nn.Module):
    """Uneven shapes on purpose, unless another width is asked for: 6 rows do not divide by 4."""

    def __init__(self, width: int = 6, depth: int = 2) -> None:
        super().__init__()
        self.enter = nn.Linear(4, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.leave = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.leave(x)


class Words(nn.Module):
    """A language model that writes with the words it reads, one weight for both."""

    def __init__(self, width: int = 6, num_words: int = 12) -> None:
        super().__init__()
        self.words = nn.Embedding(num_words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, num_words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

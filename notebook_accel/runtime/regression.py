"""The smallest training there is: a line through noisy points."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset


class RegressionDataset(Dataset[dict[str, Tensor]]):
    """Points near the line ``y = a x + b``.

    Shapes: each item holds "x" and "y", 0-d.
    """

    def __init__(self, a: float = 2, b: float = 3, length: int = 64, seed: int | None = None):
        generator = torch.Generator()
        generator.manual_seed(torch.seed() if seed is None else seed)
        self.length = length
        self.x = torch.randn(length, generator=generator)
        self.y = a * self.x + b + 0.1 * torch.randn(length, generator=generator)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"x": self.x[i], "y": self.y[i]}


class RegressionModel(nn.Module):
    """The line ``a x + b``, to be found."""

    def __init__(self, a: float = 0, b: float = 0, double_output: bool = False) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(float(a)))
        self.b = nn.Parameter(torch.tensor(float(b)))
        self.double_output = double_output

    def forward(self, x: Tensor) -> Any:
        """Give the line's values, twice with ``double_output``."""
        y = x * self.a + self.b
        return (y, y) if self.double_output else y

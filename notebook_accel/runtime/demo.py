"""What ``notebook-accel demo`` trains: a classifier of digits, which are drawn here.

Nothing is downloaded: each digit is a picture of 5 by 7 dots, put somewhere on a field of 12 by 12,
lighter or darker, under noise.

    B batch    H rows    W columns
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel.ranks.seeding import set_seed
from notebook_accel.runtime.accelerator import Accelerator

NUM_TRAIN, NUM_TEST, EPOCHS, BATCH = 10_000, 1000, 5, 32
_FIELD, _ROWS, _COLUMNS = 12, 7, 5
_NOISE = 0.2
# Seven rows of five dots a digit, a row as a number in base 2.
_DIGITS = (
    (14, 17, 19, 21, 25, 17, 14), (4, 12, 4, 4, 4, 4, 14), (14, 17, 1, 2, 4, 8, 31),
    (31, 2, 4, 2, 1, 17, 14), (2, 6, 10, 18, 31, 2, 2), (31, 16, 30, 1, 1, 17, 14),
    (6, 8, 16, 30, 17, 17, 14), (31, 1, 2, 4, 8, 8, 8), (14, 17, 17, 14, 17, 17, 14),
    (14, 17, 17, 15, 1, 2, 12),
)  # fmt: skip


def draw(num: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw ``num`` pictures and say which digits they are.

    Shapes: pictures (num, 1, 12, 12), digits (num,).
    """

    def some(below: int) -> Tensor:
        return torch.randint(below, (num,), generator=generator)

    digits, top, left = some(10), some(_FIELD - _ROWS + 1), some(_FIELD - _COLUMNS + 1)
    rows = torch.tensor(_DIGITS)
    dots = (rows[:, :, None] >> torch.arange(_COLUMNS - 1, -1, -1)) & 1
    light = 0.6 + 0.4 * torch.rand(num, 1, 1, generator=generator)
    field_BHW = torch.zeros(num, _FIELD, _FIELD)
    at_H = top[:, None, None] + torch.arange(_ROWS)[None, :, None]
    at_W = left[:, None, None] + torch.arange(_COLUMNS)[None, None, :]
    field_BHW[torch.arange(num)[:, None, None], at_H, at_W] = dots[digits] * light
    field_BHW += _NOISE * torch.randn(field_BHW.shape, generator=generator)
    return field_BHW[:, None], digits


def main() -> dict[str, float | int]:
    """Train on this rank's share; give the accuracy on pictures that were never trained on."""
    accelerator = Accelerator()
    set_seed(0)
    generator = torch.Generator().manual_seed(0)
    train, test = (TensorDataset(*draw(num, generator)) for num in (NUM_TRAIN, NUM_TEST))
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(train, BATCH, shuffle=True)
    model, optimizer, loader, tests = accelerator.prepare(
        model, optimizer, loader, DataLoader(test, 200)
    )
    for _ in range(EPOCHS):
        for pictures, digits in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pictures), digits)
            accelerator.backward(loss)
            optimizer.step()
    right = seen = 0
    model.eval()
    with torch.no_grad():
        for pictures, digits in tests:
            hits = accelerator.gather_for_metrics(model(pictures).argmax(1) == digits)
            right, seen = right + int(hits.sum()), seen + len(hits)
    return {"accuracy": right / seen, "seen": seen}

"""Trains a small network; how it lies across processes is the business of who starts it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import Accelerator, set_seed

NUM_ROWS, BATCH_SIZE, NUM_EPOCHS, CLIP = 48, 8, 2, 0.5


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(self.norm(x)).tanh())


class Net(nn.Module):
    tp_plan = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}  # noqa: RUF012

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.enter = nn.Linear(4, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.leave = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.leave(x)


def main(folder: str = "", ends_at: int = NUM_EPOCHS) -> None:
    """Train up to ``ends_at`` epochs, from the checkpoint of the first if ``folder`` has it."""
    accelerator = Accelerator(split_batches=True)  # a batch is the whole one, of all processes
    set_seed(0)
    x = torch.randn(NUM_ROWS, 4)
    y = (x[:, :1] * x[:, 1:2]).tanh()
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(x, y), batch_size=BATCH_SIZE, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    resumes = bool(folder) and Path(folder).exists()
    if resumes:
        accelerator.load_state(folder)
    losses, norms = [], []
    for epoch in range(int(resumes), ends_at):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = accelerator.forward_backward(model, batch, nn.functional.mse_loss)
                if accelerator.sync_gradients:
                    norm = accelerator.clip_grad_norm_(model.parameters(), CLIP)
                    norms.append(float(norm))
                optimizer.step()
                optimizer.zero_grad()
            losses.append(accelerator.reduce(loss, "mean").item())
        if folder and epoch == 0:
            accelerator.save_state(folder)
    kind, precision = str(accelerator.distributed_type), accelerator.mixed_precision
    told = [losses, norms, accelerator.num_processes, kind, precision]
    accelerator.print("told:" + json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))

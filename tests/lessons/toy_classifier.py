"""Lesson 1: an ordinary loop, with four lines changed."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import Accelerator, set_seed


def main():
    accelerator = Accelerator(cpu=True)
    accelerator.print(f"device: {accelerator.device.type} | processes: {accelerator.num_processes}")

    set_seed(0)
    inputs = torch.randn(256, 4)
    labels = (inputs[:, 0] + inputs[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=32, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    for epoch in range(3):
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            total += accelerator.gather(loss).mean().item()
        accelerator.print(f"epoch {epoch}  loss {total / len(loader):.3f}")


if __name__ == "__main__":
    main()

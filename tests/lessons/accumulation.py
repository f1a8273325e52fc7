"""Lesson 3: four micro-batches make one optimizer update."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import Accelerator, set_seed


def main():
    accelerator = Accelerator(gradient_accumulation_steps=4, cpu=True)

    set_seed(0)
    inputs = torch.randn(64, 4)
    labels = (inputs[:, 0] + inputs[:, 1] > 0).long()
    model = nn.Linear(4, 2)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    batches = updates = 0
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        batches += 1
        updates += accelerator.sync_gradients
    accelerator.print(f"batches: {batches} | optimizer updates: {updates}")


if __name__ == "__main__":
    main()

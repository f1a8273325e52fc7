"""Lesson 2: scoring counts every example exactly once, on any number of processes."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import Accelerator, set_seed


def main():
    accelerator = Accelerator(cpu=True)

    set_seed(0)
    inputs = torch.randn(150, 4)
    labels = (inputs[:, 0] + inputs[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=32)
    model, loader = accelerator.prepare(model, loader)

    correct = []
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            hits = model(x).argmax(dim=1) == y
            correct.append(accelerator.gather_for_metrics(hits))
    scores = torch.cat(correct).float()
    accelerator.print(f"scored {len(scores)} examples, accuracy {scores.mean().item():.2f}")


if __name__ == "__main__":
    main()

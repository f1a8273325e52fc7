"""Gradient accumulation as scripts for Accelerate have it, on the line through points."""

import argparse

import torch
from torch.utils.data import DataLoader

from notebook_accel import Accelerator
from notebook_accel.test_utils import RegressionDataset, RegressionModel
from notebook_accel.utils import GradientAccumulationPlugin, set_seed


def main(argv=None):
    parser = argparse.ArgumentParser(description="Gradient accumulation.")
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--plugin", action="store_true")
    args = parser.parse_args(argv)
    if args.plugin:
        plugin = GradientAccumulationPlugin(num_steps=args.gradient_accumulation_steps)
        accelerator = Accelerator(gradient_accumulation_plugin=plugin)
    else:
        accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
    set_seed(0)
    model = RegressionModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = RegressionDataset(length=56, seed=1)
    dataloader = DataLoader(dataset, batch_size=args.batch_size)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    updates = 0
    for _ in range(2):
        for batch in dataloader:
            with accelerator.accumulate(model):
                output = model(batch["x"])
                loss = torch.nn.functional.mse_loss(output, batch["y"])
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_value_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            updates += accelerator.sync_gradients
    unwrapped = accelerator.unwrap_model(model)
    return {"a": unwrapped.a.item(), "b": unwrapped.b.item(), "updates": updates}


if __name__ == "__main__":
    main()

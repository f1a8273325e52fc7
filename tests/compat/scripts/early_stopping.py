"""Early stopping as scripts for Accelerate have it: one rank raises an alarm that all see."""

import argparse

import torch
from torch.utils.data import DataLoader

from notebook_accel import Accelerator
from notebook_accel.test_utils import RegressionDataset, RegressionModel
from notebook_accel.utils import set_seed


class EarlyStoppingCallback:
    def __init__(self, min_delta=0.0, patience=5):
        self.min_delta = min_delta
        self.patience = patience
        self.counter = 0
        self.lowest_loss = float("inf")

    def check_early_stopping(self, eval_loss):
        delta = self.lowest_loss - eval_loss
        if delta >= self.min_delta:
            self.lowest_loss = eval_loss
            self.counter = 0
        else:
            self.counter += 1
        return self.counter >= self.patience


def main(argv=None):
    parser = argparse.ArgumentParser(description="Early stopping.")
    parser.add_argument("--only_on_rank", type=int, default=None)
    args = parser.parse_args(argv)
    accelerator = Accelerator()
    set_seed(0)
    model = RegressionModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    dataloader = DataLoader(RegressionDataset(length=32, seed=1), batch_size=4, shuffle=True)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    callback = EarlyStoppingCallback(min_delta=0.001, patience=3)
    steps = 0
    for _ in range(50):
        for batch in dataloader:
            loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            watching = args.only_on_rank in (None, accelerator.process_index)
            if watching and callback.check_early_stopping(loss.item()):
                accelerator.set_trigger()
            if accelerator.check_trigger():
                accelerator.print(f"stopped at step {steps}")
                return {"steps": steps, "stopped": True}
    return {"steps": steps, "stopped": False}


if __name__ == "__main__":
    main()

"""Tracking as scripts for Accelerate have it: by name, and with a tracker of the person's own."""

import argparse
import json
import os

import torch
from torch.utils.data import DataLoader

from notebook_accel import Accelerator
from notebook_accel.logging import get_logger
from notebook_accel.test_utils import RegressionDataset, RegressionModel
from notebook_accel.tracking import GeneralTracker, on_main_process
from notebook_accel.utils import set_seed

logger = get_logger(__name__)


class MyTracker(GeneralTracker):
    name = "mine"
    requires_logging_directory = False

    @on_main_process
    def __init__(self, path):
        super().__init__()
        self.path = path
        self.lines = []

    @property
    def tracker(self):
        return self.lines

    @on_main_process
    def store_init_configuration(self, values):
        self.lines.append(values)

    @on_main_process
    def log(self, values, step=None, **kwargs):
        self.lines.append({**values, "step": step})

    @on_main_process
    def finish(self):
        with open(self.path, "w") as file:
            json.dump(self.lines, file)


def main(argv=None):
    parser = argparse.ArgumentParser(description="Tracking.")
    parser.add_argument("--project_dir", required=True)
    parser.add_argument("--log_with", nargs="*", default=["jsonl"])
    args = parser.parse_args(argv)
    mine = MyTracker(os.path.join(args.project_dir, "mine.json"))
    accelerator = Accelerator(log_with=[*args.log_with, mine], project_dir=args.project_dir)
    accelerator.init_trackers("line", config={"lr": 0.1, "betas": (0.9, 0.99), "name": None})
    set_seed(0)
    model = RegressionModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataloader = DataLoader(RegressionDataset(length=32, seed=1), batch_size=4)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for epoch in range(2):
        total_loss = 0.0
        for batch in dataloader:
            loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
            total_loss += loss.detach().float()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        logger.info("epoch %d", epoch)
        mean = accelerator.reduce(total_loss, reduction="mean").item() / len(dataloader)
        accelerator.log({"train_loss": mean, "epoch": epoch}, step=epoch)
    wrapped = accelerator.get_tracker("mine", unwrap=True)
    num_lines = len(wrapped) if accelerator.is_main_process else 0
    accelerator.end_training()
    return {"train_loss": mean, "lines": num_lines}


if __name__ == "__main__":
    main()

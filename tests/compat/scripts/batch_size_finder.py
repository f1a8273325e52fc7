"""The largest batch that fits, as scripts for Accelerate find it."""

import argparse

import torch
from torch.utils.data import DataLoader

from notebook_accel import Accelerator, find_executable_batch_size
from notebook_accel.test_utils import RegressionDataset, RegressionModel
from notebook_accel.utils import release_memory, set_seed


def main(argv=None):
    parser = argparse.ArgumentParser(description="The largest batch that fits.")
    parser.add_argument("--fits", type=int, default=32)
    args = parser.parse_args(argv)
    accelerator = Accelerator()
    tried = []

    @find_executable_batch_size(starting_batch_size=64)
    def inner_training_loop(batch_size):
        nonlocal accelerator
        accelerator.free_memory()
        tried.append(batch_size)
        set_seed(0)
        model = RegressionModel()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        dataloader = DataLoader(RegressionDataset(length=128, seed=1), batch_size=batch_size)
        model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
        if batch_size > args.fits:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        for batch in dataloader:
            loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        model, optimizer = release_memory(model, optimizer)
        return batch_size

    return {"found": inner_training_loop(), "tried": tried}


if __name__ == "__main__":
    main()

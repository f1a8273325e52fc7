"""Checkpoints in the middle of an epoch and resuming, as scripts for Accelerate have it."""

import argparse
import os

import torch
from torch.utils.data import DataLoader

from notebook_accel import Accelerator
from notebook_accel.test_utils import RegressionDataset, RegressionModel
from notebook_accel.utils import ProjectConfiguration, set_seed


def main(argv=None):
    parser = argparse.ArgumentParser(description="Checkpointing.")
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--checkpointing_steps", type=int, default=3)
    parser.add_argument("--resume_from_checkpoint", default=None)
    parser.add_argument("--num_epochs", type=int, default=2)
    parser.add_argument("--skip_by_hand", action="store_true")
    args = parser.parse_args(argv)
    accelerator = Accelerator(project_config=ProjectConfiguration(project_dir=args.output_dir))
    set_seed(7)
    model = RegressionModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4)
    dataset = RegressionDataset(length=40, seed=1)
    train_dataloader = DataLoader(dataset, batch_size=4, shuffle=True)
    model, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, lr_scheduler
    )
    overall_step, starting_epoch, resume_step = 0, 0, None
    if args.resume_from_checkpoint:
        accelerator.print(f"Resumed from checkpoint: {args.resume_from_checkpoint}")
        accelerator.load_state(args.resume_from_checkpoint)
        overall_step = int(os.path.basename(args.resume_from_checkpoint).replace("step_", ""))
        starting_epoch = overall_step // len(train_dataloader)
        resume_step = overall_step - starting_epoch * len(train_dataloader)
    for _ in range(starting_epoch, args.num_epochs):
        model.train()
        active_dataloader = train_dataloader
        if args.skip_by_hand and resume_step is not None:
            active_dataloader = accelerator.skip_first_batches(train_dataloader, resume_step)
            resume_step = None
        for batch in active_dataloader:
            loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            overall_step += 1
            if overall_step % args.checkpointing_steps == 0:
                accelerator.save_state(os.path.join(args.output_dir, f"step_{overall_step}"))
    unwrapped = accelerator.unwrap_model(model)
    return {"a": unwrapped.a.item(), "b": unwrapped.b.item(), "step": overall_step}


if __name__ == "__main__":
    main()

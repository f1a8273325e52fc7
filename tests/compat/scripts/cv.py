"""Image classification as scripts for Accelerate have it: OneCycle, frozen body, a saved model."""

import argparse
import os

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset

from notebook_accel import Accelerator
from notebook_accel.utils import set_seed


class Shapes(Dataset):
    """Bars that stand or lie, with noise."""

    def __init__(self, num, seed):
        generator = torch.Generator().manual_seed(seed)
        self.images = torch.rand(num, 1, 8, 8, generator=generator) * 0.5
        self.labels = torch.arange(num) % 2
        places = torch.randint(8, (num,), generator=generator)
        for image, label, place in zip(self.images, self.labels, places, strict=True):
            image[0, :, place] += 1 - label
            image[0, place, :] += label

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return {"image": self.images[i], "label": self.labels[i]}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, (8, 1)), nn.ReLU())
        self.across = nn.Sequential(nn.Conv2d(1, 8, (1, 8)), nn.ReLU())
        self.norm = nn.BatchNorm1d(16)
        self.fc = nn.Linear(16, 2)

    def forward(self, x):
        features = torch.cat([self.body(x).amax((2, 3)), self.across(x).amax((2, 3))], 1)
        return self.fc(self.norm(features))


def training_function(config, args):
    accelerator = Accelerator(mixed_precision=args.mixed_precision, cpu=args.cpu)
    set_seed(config["seed"])
    train_dataloader = DataLoader(
        Shapes(256, 0), shuffle=True, batch_size=config["batch_size"], drop_last=True
    )
    eval_dataloader = DataLoader(Shapes(99, 1), batch_size=config["batch_size"])
    model = Net()
    model = model.to(accelerator.device)
    for param in model.body[0].parameters():
        param.requires_grad = config["train_body"]
    mean = torch.tensor([0.3])[None, :, None, None].to(accelerator.device)
    std = torch.tensor([0.3])[None, :, None, None].to(accelerator.device)
    optimizer = torch.optim.Adam(params=model.parameters(), lr=config["lr"] / 25)
    lr_scheduler = OneCycleLR(
        optimizer=optimizer,
        max_lr=config["lr"],
        epochs=config["num_epochs"],
        steps_per_epoch=len(train_dataloader),
    )
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )
    for epoch in range(config["num_epochs"]):
        model.train()
        for batch in train_dataloader:
            batch = {k: v.to(accelerator.device) for k, v in batch.items()}
            outputs = model((batch["image"] - mean) / std)
            loss = torch.nn.functional.cross_entropy(outputs, batch["label"])
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        model.eval()
        accurate, num_elems = 0, 0
        for batch in eval_dataloader:
            with torch.no_grad():
                outputs = model((batch["image"] - mean) / std)
            predictions = outputs.argmax(dim=-1)
            predictions, references = accelerator.gather_for_metrics((predictions, batch["label"]))
            accurate_preds = predictions == references
            num_elems += accurate_preds.shape[0]
            accurate += accurate_preds.long().sum()
        accelerator.print(f"epoch {epoch}: {100 * accurate.item() / num_elems:.2f}")
    accelerator.wait_for_everyone()
    unwrapped = accelerator.unwrap_model(model)
    accelerator.save(unwrapped.state_dict(), os.path.join(args.output_dir, "model.pt"))
    accelerator.save_model(model, os.path.join(args.output_dir, "exported"))
    accelerator.wait_for_everyone()
    fresh = Net()
    fresh.load_state_dict(torch.load(os.path.join(args.output_dir, "model.pt"), weights_only=True))
    return {"accuracy": accurate.item() / num_elems, "counted": num_elems}


def main(argv=None):
    parser = argparse.ArgumentParser(description="Image classification.")
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--mixed_precision", choices=["no", "fp16", "bf16"], default=None)
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args(argv)
    config = {"lr": 3e-2, "num_epochs": 3, "seed": 42, "batch_size": 16, "train_body": True}
    return training_function(config, args)


if __name__ == "__main__":
    main()

"""Two models that play against each other: a generator and a critic, each with its optimizer."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader

from notebook_accel import Accelerator
from notebook_accel.utils import set_seed


def main(argv=None):
    parser = argparse.ArgumentParser(description="A small GAN.")
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--batch_size", type=int, default=16)
    args = parser.parse_args(argv)
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
    set_seed(0)
    netG = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    netD = nn.Sequential(nn.Linear(1, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=0.01, betas=(0.5, 0.999))
    optimizerD = torch.optim.Adam(netD.parameters(), lr=0.01, betas=(0.5, 0.999))
    generator = torch.Generator().manual_seed(1)
    real = torch.randn(128, 1, generator=generator) * 0.5 + 2
    noise = torch.randn(128, 4, generator=generator)
    rows = list(zip(real, noise, strict=True))
    dataloader = DataLoader(rows, batch_size=args.batch_size)
    netG, netD, optimizerG, optimizerD, dataloader = accelerator.prepare(
        netG, netD, optimizerG, optimizerD, dataloader
    )
    criterion = nn.BCEWithLogitsLoss()
    for _ in range(3):
        for real_batch, noise_batch in dataloader:
            with accelerator.accumulate(netG, netD):
                ones = torch.ones(len(real_batch), 1, device=accelerator.device)
                fake = netG(noise_batch)
                lossD = criterion(netD(real_batch), ones)
                lossD = lossD + criterion(netD(fake.detach()), torch.zeros_like(ones))
                accelerator.backward(lossD)
                optimizerD.step()
                optimizerD.zero_grad()
                for parameter in netD.parameters():
                    parameter.requires_grad_(False)
                lossG = criterion(accelerator.unwrap_model(netD)(fake), ones)
                accelerator.backward(lossG)
                optimizerG.step()
                optimizerG.zero_grad()
                for parameter in netD.parameters():
                    parameter.requires_grad_(True)
    weights = [*accelerator.unwrap_model(netG).parameters()]
    weights += [*accelerator.unwrap_model(netD).parameters()]
    return {"weights": [one.detach().sum().item() for one in weights]}


if __name__ == "__main__":
    main()

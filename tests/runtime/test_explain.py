"""What explain() prints."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from notebook_accel import Accelerator, notebook_launcher


def test_it_says_what_became_of_each_object(capsys: pytest.CaptureFixture[str]) -> None:
    accelerator = Accelerator(gradient_accumulation_steps=4, mixed_precision="bf16", cpu=True)
    accelerator.explain()
    assert "nothing is prepared yet" in capsys.readouterr().out
    model = nn.Sequential(nn.Linear(3, 1), nn.Linear(1, 1).requires_grad_(False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    _ = accelerator.prepare(
        model,
        optimizer,
        torch.optim.lr_scheduler.ConstantLR(optimizer),
        torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
        DataLoader(torch.ones(1000, 3), batch_size=32),
        nn.ReLU(),
    )
    accelerator.explain()
    assert capsys.readouterr().out.splitlines() == [
        "1 rank on cpu, strategy single, mixed precision bf16, accumulation 4",
        "model      Sequential: 6 parameters, 4 of them trained",
        "model      ReLU: 0 parameters; not wrapped: there is nothing to train",
        "optimizer  AdamW: learning rate 0.001",
        "scheduler  ConstantLR: moves 1 step at each update",
        "scheduler  ReduceLROnPlateau: steps whenever it is told to",
        "loader     1,000 samples, 32 batches",
        "batch      32 per device x 1 process x 4 accumulated = 128 an update",
        "rate       0.001 found with a batch of 32 would be 0.004 scaled linearly, "
        "0.002 by the square root",
    ]


def test_ranks_are_part_of_the_arithmetic_and_it_is_said_once() -> None:
    def main() -> None:
        accelerator = Accelerator()
        model = nn.Linear(3, 1)
        loader = DataLoader(torch.ones(100, 3), batch_size=8)
        _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
        accelerator.explain()

    run = notebook_launcher(main, num_processes=2, device="cpu")
    said = "".join(run.logs).splitlines()
    assert "2 ranks on cpu (gloo), strategy ddp, mixed precision no, accumulation 1" in said
    assert any("wrapped in DistributedDataParallel" in line for line in said)
    assert said.count("batch      8 per device x 2 processes x 1 accumulated = 16 an update") == 1
    assert any("would be 0.2 scaled linearly, 0.1414 by the square root" in one for one in said)


def test_batches_that_are_split_are_counted_once() -> None:
    def main() -> tuple[int, int]:
        accelerator = Accelerator(split_batches=True)
        model = nn.Linear(3, 1)
        loader = DataLoader(torch.ones(10, 3), batch_size=4)
        model, loader = accelerator.prepare(model, loader)
        accelerator.explain()
        return next((accelerator.gradient_state.remainder, len(batch)) for batch in loader)

    run = notebook_launcher(main, num_processes=2, device="cpu")
    assert run[0] == (2, 2)
    said = "".join(run.logs)
    assert "batch      2 per device x 2 processes x 1 accumulated = 4 an update" in said


def test_streams_without_a_length_are_said_to_be_so(capsys: pytest.CaptureFixture[str]) -> None:
    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            yield from range(4)

    accelerator = Accelerator(cpu=True)
    _ = accelerator.prepare(DataLoader(Stream(), batch_size=2))
    accelerator.explain()
    assert "loader     samples without end in sight" in capsys.readouterr().out

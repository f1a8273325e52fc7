"""Ranks that are slow in every way are never taken for stuck ones."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import torch
from torch import nn

from notebook_accel import Accelerator, notebook_launcher


class SlowToRead:
    """An object whose reading keeps a rank busy inside a collective."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        end = time.process_time() + self.seconds
        while time.process_time() < end:
            pass


def dawdle(seconds: float) -> int:
    accelerator = Accelerator(cpu=True)
    shared, own = random.Random(0), random.Random(accelerator.process_index)
    model = nn.Sequential(nn.Linear(50, 50), nn.BatchNorm1d(50), nn.Linear(50, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)

    def train() -> None:
        for _ in range(5):
            optimizer.zero_grad()
            accelerator.backward(model(torch.randn(8, 50)).sum())
            optimizer.step()

    def in_turn() -> None:
        with accelerator.main_process_first():
            time.sleep(own.uniform(0, 0.5))

    deeds = [
        train,
        in_turn,
        accelerator.wait_for_everyone,
        lambda: accelerator.gather(torch.ones(shared.randrange(1, 400_000))),
        lambda: accelerator.gather_for_metrics([SlowToRead(own.uniform(0, 2))]),
        lambda: accelerator.reduce(torch.ones(20_000_000)),
        lambda: accelerator.pad_across_processes(torch.ones(own.randrange(1, 1000))),
    ]
    began, rounds = time.monotonic(), 0
    while True:
        in_time = torch.tensor(float(time.monotonic() - began < seconds))
        if not accelerator.reduce(in_time, "min").item():
            return rounds
        rounds += 1
        if own.random() < 0.2:
            time.sleep(own.uniform(0, 6))
        shared.choice(deeds)()


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_ranks_that_dawdle_go_on_together() -> None:
    first, *others = notebook_launcher(dawdle, (90.0,), num_processes=3, device="cpu").values
    assert first > 5
    assert others == [first, first]

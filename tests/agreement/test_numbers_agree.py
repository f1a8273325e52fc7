"""1, 2 and 4 processes, however they accumulate: one curve, in every precision, clipped or not.

Every way trains on batches of 8 rows: so many ranks x so many micro-batches x so many rows.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import Accelerator, notebook_launcher
from notebook_accel.config.handlers import GradScalerKwargs

WAYS = ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1), (4, 2))  # ranks, accumulation
PRECISIONS = {"no": 1e-5, "bf16": 3e-2, "fp16": 5e-3}
CLIPS = (0.1, 1e9)
ORDERS = ("zero first", "zero last")
NUM_ROWS = (24, 28)  # 28: the last window holds 4 rows
EPOCHS = 2


def train(accumulate: int, precision: str, clip: float, order: str, num_rows: int) -> list[float]:
    """Give losses and gradient norms of all updates, then learning rates, then the parameters."""
    accelerator = Accelerator(
        mixed_precision=precision,
        gradient_accumulation_steps=accumulate,
        cpu=True,
        kwargs_handlers=[GradScalerKwargs(init_scale=256.0)],
        schedule_in_updates=True,
    )
    torch.manual_seed(0)
    x = torch.randn(num_rows, 4)
    y = (x[:, :1] + x[:, 1:2]).tanh()
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    batch_size = 8 // accumulate // accelerator.num_processes
    loader = DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = LambdaLR(optimizer, lambda update: 1 / (1 + update))
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    losses, norms, rates, window = [], [], [], []
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                if order == "zero first":
                    optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                window.append(accelerator.reduce(loss, "mean").item())
                if accelerator.sync_gradients:
                    norms.append(accelerator.clip_grad_norm_(model.parameters(), clip).item())
                    losses.append(sum(window) / len(window))
                    window.clear()
                optimizer.step()
                scheduler.step()
                if accelerator.sync_gradients:
                    rates.append(scheduler.get_last_lr()[0])
                if order == "zero last":
                    optimizer.zero_grad()
    state = accelerator.get_state_dict(model)
    return [*losses, *norms, *rates, *(v for one in state.values() for v in one.flatten().tolist())]


def trains_every_way() -> dict[tuple, list[float]]:
    size = Accelerator(cpu=True).num_processes
    return {
        (size, accumulate, *rest): train(accumulate, *rest)
        for ranks, accumulate in WAYS
        if ranks == size
        for rest in itertools.product(PRECISIONS, CLIPS, ORDERS, NUM_ROWS)
    }


@pytest.fixture(scope="module")
def runs() -> dict[tuple, list[float]]:
    found = {}
    for size in (1, 2, 4):
        run = notebook_launcher(trains_every_way, (), size, device="cpu")
        assert all(run[rank] == run[0] for rank in range(size))
        found.update(run[0])
    return found


# Full windows for all; short last ones where ranks need no completion (see the padded list).
CASES = [
    (ranks, accumulate, *rest)
    for ranks, accumulate in WAYS[1:]
    for rest in itertools.product(PRECISIONS, CLIPS, ORDERS, NUM_ROWS)
    if rest[-1] == 24 or accumulate > 1
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_way_is_the_big_batch(runs: dict, case: tuple) -> None:
    expected = runs[(1, 1, *case[2:])]
    tolerance = PRECISIONS[case[2]]
    assert runs[case] == pytest.approx(expected, abs=tolerance, rel=tolerance)


def test_the_settings_matter(runs: dict) -> None:
    """Else their agreement would say nothing."""
    plain = runs[(1, 1, "no", 1e9, "zero first", 24)]
    for other in ((1, 1, "no", 0.1, "zero first", 24), (1, 1, "bf16", 1e9, "zero first", 24)):
        assert runs[other] != pytest.approx(plain, abs=1e-5)
    assert len(runs[(1, 1, "no", 1e9, "zero first", 28)]) == len(plain) + 3 * EPOCHS
    assert runs[(1, 2, "no", 1e9, "zero first", 24)] == runs[(1, 2, "no", 1e9, "zero last", 24)]

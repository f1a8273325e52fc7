"""Sequences divided over ranks equal the single device: losses, gradient norms, parameters.

Every way trains on batches of 8 rows of 16 tokens: so many readers x so many micro-batches x so
many rows, and each row over so many ranks.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import Accelerator, SequenceParallel, notebook_launcher
from notebook_accel.config.handlers import GradScalerKwargs
from notebook_accel.config.wishes import FSDP, SingleDevice, Strategy, TensorParallel

VOCABULARY, TOKENS, WIDTH = 11, 16, 16
PLAN = {
    "blocks.*.query": "colwise",
    "blocks.*.key": "colwise",
    "blocks.*.value": "colwise",
    "blocks.*.out": "rowwise",
}
KEYS = {"exchange": "keys"}
ON_2: dict[str, Strategy] = {
    "heads": SequenceParallel(2),
    "keys": SequenceParallel(2, **KEYS),
    "heads, fsdp": SequenceParallel(2, data=FSDP()),
    "keys, fsdp recomputing": SequenceParallel(2, **KEYS, data=FSDP(activation_checkpointing=True)),
}
ON_4: dict[str, Strategy] = {
    "heads, ddp": SequenceParallel(2),
    "keys on all": SequenceParallel(4, **KEYS),
    "heads, hsdp": SequenceParallel(2, data=FSDP(replicas=2)),
    "heads, fsdp": SequenceParallel(2, data=FSDP()),
    "heads, layers": SequenceParallel(2, data=TensorParallel(2, PLAN)),
}
PRECISIONS = {"no": 1e-5, "bf16": 3e-2, "fp16": 5e-3}
# accumulation, precision, clip, rows: 28 leave 4 for the last window
SETTINGS = [(1, "no", 0.1, 24), (2, "no", 1e9, 28), (2, "bf16", 0.1, 28), (2, "fp16", 1e9, 24)]


class Block(nn.Module):
    """Attention of 4 heads, 2 of them for keys and values."""

    def __init__(self, recomputes: bool) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)  # a bias has no gradient but noise
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.recomputes = recomputes

    def forward(self, x: Tensor) -> Tensor:
        return (
            checkpoint(self.attend, x, use_reentrant=False) if self.recomputes else self.attend(x)
        )

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (-1, 4)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(seen.transpose(1, 2).flatten(2))


class Net(nn.Module):
    """A language model that knows places by ``position_ids``."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList(Block(index == 1) for index in range(2))
        self.leave = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: Tensor, position_ids: Tensor | None = None) -> Tensor:
        if position_ids is None:
            position_ids = torch.arange(x.shape[1], device=x.device)[None]
        x = self.words(x) + self.places(position_ids)
        for block in self.blocks:
            x = block(x)
        return self.leave(x)


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def data(num_rows: int) -> TensorDataset:
    torch.manual_seed(0)
    text = torch.randint(0, VOCABULARY, (num_rows, TOKENS + 1))
    return TensorDataset(text[:, :-1], text[:, 1:])


def train(
    strategy: Strategy, accumulate: int, precision: str, clip: float, num_rows: int
) -> list[float]:
    """Give losses and gradient norms of all updates, then the parameters."""
    accelerator = Accelerator(
        mixed_precision=precision,
        gradient_accumulation_steps=accumulate,
        cpu=True,
        kwargs_handlers=[GradScalerKwargs(init_scale=256.0)],
        strategy=strategy,
    )
    dataset = data(num_rows)
    model = Net()
    batch_size = 8 // accumulate // accelerator._engine.layout.data_size
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(dataset, batch_size=batch_size)
    )
    losses, norms, window = [], [], []
    for epoch in range(2):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                if epoch:
                    loss = accelerator.forward_backward(model, (inputs, targets), loss_of)
                else:
                    loss = loss_of(model(inputs), targets)
                    accelerator.backward(loss)
                window.append(accelerator.reduce(loss.detach(), "mean").item())
                if accelerator.sync_gradients:
                    norms.append(accelerator.clip_grad_norm_(model.parameters(), clip).item())
                    losses.append(sum(window) / len(window))
                    window.clear()
                optimizer.step()
    state = accelerator.get_state_dict(model)
    return [*losses, *norms, *(v for one in state.values() for v in one.flatten().tolist())]


def trains_every_way(ways: dict[str, Strategy], most: int) -> dict[tuple, list[float]]:
    return {
        (name, *setting): train(strategy, *setting)
        for name, strategy in ways.items()
        for setting in (SETTINGS if name == "heads" else SETTINGS[1 : 1 + most])
    }


def single() -> dict[tuple, list[float]]:
    return {setting: train(SingleDevice(), *setting) for setting in SETTINGS}


@pytest.fixture(scope="module")
def alone() -> dict[tuple, list[float]]:
    return notebook_launcher(single, (), 1, device="cpu")[0]


def check(alone: dict, ways: dict[str, Strategy], size: int, most: int) -> None:
    run = notebook_launcher(trains_every_way, (ways, most), size, device="cpu", timeout_s=300)
    for case, found in run[0].items():
        tolerance = PRECISIONS[case[2]]
        assert found == pytest.approx(alone[case[1:]], abs=tolerance, rel=tolerance), case


def test_two_ranks_of_one_sequence_are_the_single_device(alone: dict) -> None:
    check(alone, ON_2, 2, most=1)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_four_ranks_of_sequences_and_data_are_the_single_device(alone: dict) -> None:
    check(alone, ON_4, 4, most=2)


# ── saved and loaded ──────────────────────────────────────────────────────────────────────────────


def one_pass(strategy: Strategy, folder: Path | None, saves: Path | None) -> list[float]:
    accelerator = Accelerator(cpu=True, strategy=strategy)
    dataset = data(24)
    model = Net()
    batch_size = 8 // accelerator._engine.layout.data_size
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(dataset, batch_size=batch_size)
    )
    if folder is not None:
        accelerator.load_state(folder)
    losses = []
    for inputs, targets in loader:
        loss = loss_of(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
    if saves is not None:
        accelerator.save_state(saves)
    return losses


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "strategy"), [(2, SequenceParallel(2)), (4, SequenceParallel(2, data=FSDP()))]
)
def test_a_state_goes_from_divided_sequences_to_one_device_and_back(
    size: int, strategy: Strategy, tmp_path: Path
) -> None:
    def launch(how: Strategy, num: int, *folders: Path | None) -> list[float]:
        run = notebook_launcher(one_pass, (how, *folders), num, device="cpu", timeout_s=100)
        assert run.history["loss"] == pytest.approx(run[0], abs=1e-6)  # the curve that is drawn
        return run[0]

    first = launch(SingleDevice(), 1, None, tmp_path / "one")
    expected = pytest.approx(launch(SingleDevice(), 1, tmp_path / "one", None), abs=1e-5)
    assert launch(strategy, size, None, tmp_path / "many") == pytest.approx(first, abs=1e-5)
    assert launch(strategy, size, tmp_path / "one", None) == expected
    assert launch(SingleDevice(), 1, tmp_path / "many", None) == expected

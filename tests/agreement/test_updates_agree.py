"""What happens once an update happens once, whatever makes the update: sums, schedules, talk."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, IterableDataset

from notebook_accel import Accelerator, notebook_launcher
from notebook_accel.config.accumulation import GradientAccumulationPlugin
from notebook_accel.config.handlers import GradScalerKwargs

TOKENS = (1, 3, 2, 6)  # valid tokens of the micro-batches, those of rank 0 first
EPOCHS = 2


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(1.0, 11.0).view(-1, 1))


def weighs_tokens(precision: str, clip: float) -> list[float]:
    """Train one update on 12 tokens in micro-batches of unlike sizes; give norm and gradient."""
    size, rank = Accelerator(cpu=True).num_processes, Accelerator(cpu=True).process_index
    accelerator = Accelerator(
        gradient_accumulation_steps=4 // size,
        cpu=True,
        mixed_precision=precision,
        kwargs_handlers=[GradScalerKwargs(init_scale=256.0)],
    )
    torch.manual_seed(0)
    tokens = torch.randn(sum(TOKENS), 2).split(TOKENS)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer = accelerator.prepare(model, optimizer)
    shown = []
    for x in tokens[rank * 4 // size : (rank + 1) * 4 // size]:
        with accelerator.accumulate(model):
            loss = accelerator.normalize((model(x) - 1).square().sum(), len(x))
            accelerator.backward(loss)
            shown.append(loss.item())
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
    assert all(0 < one < 100 for one in shown)
    return [norm.item(), *(v.item() for one in model.parameters() for v in one.grad.flatten())]


def big_batch_of_tokens(clip: float) -> list[float]:
    torch.manual_seed(0)
    tokens = torch.randn(sum(TOKENS), 2)
    model = nn.Linear(2, 1)
    (model(tokens) - 1).square().mean().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
    return [norm.item(), *(v.item() for one in model.parameters() for v in one.grad.flatten())]


def weighs_without_windows() -> list[float]:
    """Two updates without accumulate: ranks have unlike numbers, once none at all."""
    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer = accelerator.prepare(model, optimizer)
    seen = []
    for x in (torch.full((1 + 2 * rank, 1), 1.0 + rank), torch.zeros(0, 1)):
        optimizer.zero_grad()
        loss = accelerator.normalize(model(x).sum(), len(x))
        accelerator.backward(loss)
        seen += [accelerator.reduce(loss, "mean").item(), next(model.parameters()).grad.item()]
        optimizer.step()
    return seen


def schedules(in_updates: bool, accumulate: int) -> list[float]:
    """Train two epochs of 16 rows; give the last rate of a prepared and an unprepared schedule."""
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=accumulate, schedule_in_updates=in_updates
    )
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loader = DataLoader(torch.zeros(16, 1), batch_size=2)
    total = len(loader) * EPOCHS  # sized by the loader as it is before prepare
    scheduler = LambdaLR(optimizer, lambda step: 1 - step / total)
    other = LambdaLR(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0), lambda step: step)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    updates = 0
    for _ in range(EPOCHS):
        for x in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(x).sum())
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                updates += accelerator.sync_gradients
        other.step()
    return [scheduler.get_last_lr()[0] * total, other.get_last_lr()[0], updates]


def counts_reductions(accumulate: int, each_batch: bool) -> list[int]:
    """Give how many updates 8 micro-batches a rank made, and how many times gradients met."""
    plugin = GradientAccumulationPlugin(num_steps=accumulate, sync_each_batch=each_batch)
    accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
    size = accelerator.num_processes
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    loader = DataLoader(torch.ones(8 * size, 4), batch_size=1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    reductions = []

    def send(state, bucket):
        reductions.append(bucket.buffer().numel())
        work = torch.distributed.all_reduce(bucket.buffer().div_(size), async_op=True)
        return work.get_future().then(lambda sent: sent.value()[0])

    if size > 1:
        model.register_comm_hook(None, send)
    updates = 0
    for x in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(x).sum())
            optimizer.step()
            updates += accelerator.sync_gradients
            if accelerator.sync_gradients:
                assert next(model.parameters()).grad is not None
            optimizer.zero_grad()
    return [updates, len(reductions)]


def syncs(data: object, **options: bool) -> list[int]:
    plugin = GradientAccumulationPlugin(num_steps=2, **options)
    accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
    loader = DataLoader(data, batch_size=1)
    model, loader = accelerator.prepare(nn.Linear(1, 1), loader)
    seen = []
    for _ in loader:
        with accelerator.accumulate(model):
            seen.append(int(accelerator.sync_gradients))
    return seen


def separate_blocks_of_a_gan() -> list[list[float]]:
    """Train two models in separate blocks, 4 batches a rank, accumulation 2; give their steps."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    models = [nn.Linear(1, 1, bias=False) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1.0) for model in models]
    for model in models:
        nn.init.zeros_(model.weight)
    loader = DataLoader(torch.ones(4 * accelerator.num_processes, 1), batch_size=1)
    *prepared, loader = accelerator.prepare(*models, *optimizers, loader)
    weights = []
    for x in loader:
        for model, optimizer in zip(prepared[:2], prepared[2:], strict=True):
            with accelerator.accumulate(model):
                accelerator.backward(model(x).sum())
                optimizer.step()
                optimizer.zero_grad()
        weights.append([model.weight.item() for model in models])
    return weights


def everything() -> dict[str, object]:
    known = torch.arange(10.0).view(-1, 1)
    options = ({}, {"sync_with_dataloader": False}, {"sync_each_batch": True})
    return {
        "tokens": {
            (name, clip): weighs_tokens(name, clip)
            for name in ("no", "bf16", "fp16")
            for clip in (0.1, 1e9)
        },
        "without windows": weighs_without_windows(),
        "per process": schedules(False, 1),
        "in updates": {n: schedules(True, n) for n in (1, 2, 4)},
        "reductions": [counts_reductions(1, False), counts_reductions(4, False)],
        "each batch": counts_reductions(4, True),
        "syncs": [syncs(data, **more) for data in (known, Stream()) for more in options],
        "gan": separate_blocks_of_a_gan(),
    }


@pytest.fixture(scope="module")
def runs() -> dict[int, list[dict]]:
    return {n: list(notebook_launcher(everything, (), n, device="cpu")) for n in (1, 2, 4)}


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("clip", [0.1, 1e9])
@pytest.mark.parametrize(("precision", "tolerance"), [("no", 1e-6), ("bf16", 2e-2), ("fp16", 5e-3)])
def test_every_token_weighs_alike(
    runs: dict, ranks: int, clip: float, precision: str, tolerance: float
) -> None:
    """GA08."""
    for said in runs[ranks]:
        found = said["tokens"][precision, clip]
        assert found == pytest.approx(big_batch_of_tokens(clip), abs=tolerance, rel=tolerance)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_curve_shows_the_mean_over_all_tokens(ranks: int) -> None:
    run = notebook_launcher(weighs_tokens, ("no", 1e9), ranks, device="cpu")
    torch.manual_seed(0)
    tokens = torch.randn(sum(TOKENS), 2)
    expected = (nn.Linear(2, 1)(tokens) - 1).square().mean().item()
    assert list(run.history["loss"]) == [pytest.approx(expected, abs=1e-6)]


def test_losses_are_weighed_over_ranks_without_windows_too(runs: dict) -> None:
    # One token of 1 on rank 0, three of 2 on rank 1: their mean is 7/4. Then no token at all.
    for said in runs[2]:
        assert said["without windows"] == pytest.approx([1.75, 1.75, 0.0, 0.0])


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_schedule_sized_by_the_unprepared_loader_ends_with_the_last_epoch(
    runs: dict, ranks: int
) -> None:
    for said in runs[ranks]:
        left, other, updates = said["per process"]
        assert left == 0.0
        assert updates == 16 // ranks
        assert other == EPOCHS  # an unprepared schedule: one step a call


def test_a_schedule_in_updates_is_as_far_after_as_many_updates(runs: dict) -> None:
    found = {}
    for ranks in (1, 2, 4):
        for left, _, updates in runs[ranks][0]["in updates"].values():
            found.setdefault(updates, set()).add(left)
    assert found == {16: {0.0}, 8: {8.0}, 4: {12.0}, 2: {14.0}}


@pytest.mark.parametrize("ranks", [2, 4])
def test_gradients_meet_once_an_update(runs: dict, ranks: int) -> None:
    # torch's DDP makes one bucket of so small a model.
    for said in runs[ranks]:
        assert said["reductions"] == [[8, 8], [2, 2]]
        assert said["each batch"] == [2, 8]


@pytest.mark.parametrize("ranks", [2])
def test_windows_end_as_the_plugin_says_on_ranks(runs: dict, ranks: int) -> None:
    """GA02."""
    for said in runs[ranks]:
        assert said["syncs"] == [[0, 1, 0, 1, 1], [0, 1, 0, 1, 0], [0, 1, 0, 1, 1]] * 2


@pytest.mark.parametrize("ranks", [1, 2])
def test_separate_blocks_step_each_model_in_its_time(runs: dict, ranks: int) -> None:
    """GA05."""
    for said in runs[ranks]:
        assert said["gan"] == [[0, 0], [-1, -1], [-1, -1], [-2, -2]]

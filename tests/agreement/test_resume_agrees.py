"""Stopped and resumed is never stopped: bit for bit on the same number of ranks.

A run here has dropout, a shuffled loader, AdamW and a schedule: whatever is not restored shows.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from notebook_accel import (
    Accelerator,
    DataLoaderConfiguration,
    WorkerDied,
    notebook_launcher,
)
from notebook_accel.config.project import ProjectConfiguration

NUM_EPOCHS = 3
BATCH = 2
ROWS = 26  # 13 batches: an uneven last one among 2 ranks


class Stream(IterableDataset):
    """The rows of ``data``, one after the other."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        return (self.data[i] for i in range(len(self.data)))


class Run:
    """One training run, which can be saved and resumed at any batch."""

    def __init__(
        self,
        seed: int,
        accumulate: int = 1,
        own: bool = False,
        stream: bool = False,
        dispatch: bool | None = None,
        **loader: Any,
    ) -> None:
        torch.manual_seed(0)
        x = torch.randn(ROWS, 4)
        y = (x[:, :1] + x[:, 1:2]).tanh()
        rows = torch.arange(ROWS).unsqueeze(1)
        torch.manual_seed(seed)
        self.accelerator = Accelerator(
            cpu=True,
            gradient_accumulation_steps=accumulate,
            dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch),
        )
        if own:
            loader["generator"] = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed + self.accelerator.process_index)  # ranks drop out differently
        model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
        data = TensorDataset(x, y, rows)
        if stream:
            data, loader["shuffle"] = Stream(data), None
        data = DataLoader(data, **{"batch_size": BATCH, "shuffle": True, **loader})
        self.model, self.optimizer, self.schedule, self.loader = self.accelerator.prepare(
            model, optimizer, schedule, data
        )
        self.losses: list[float] = []
        self.orders: list[list[list[int]]] = []

    def epoch(self, save_after: int | None = None, place: str = "") -> None:
        """Train one pass over ``self.loader``, or stop in the middle of it and save."""
        self.orders.append([])
        for number, (x, y, rows) in enumerate(self.loader, 1):
            with self.accelerator.accumulate(self.model):
                loss = nn.functional.mse_loss(self.model(x), y)
                self.accelerator.backward(loss)
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()
            self.losses.append(loss.item())
            self.orders[-1].append(rows.flatten().tolist())
            if number == save_after:
                self.accelerator.save_state(place)
                return

    def weights(self) -> list[float]:
        state = self.accelerator.get_state_dict(self.model)
        return [v for one in state.values() for v in one.flatten().tolist()]


def never_stopped(**how: Any) -> Run:
    run = Run(1, **how)
    for _ in range(NUM_EPOCHS):
        run.epoch()
    return run


def compare(whole: Run, resumed: Run, skipped: int) -> dict[str, bool]:
    return {
        "losses": resumed.losses == whole.losses[skipped:],
        "order": [*chain(*resumed.orders)] == [*chain(*whole.orders)][skipped:],
        "weights": resumed.weights() == whole.weights(),
        "rate": resumed.schedule.get_last_lr() == whole.schedule.get_last_lr(),
        "numbers": len(resumed.losses) > 0,
    }


LAST = 13 // 2  # the last batch but one on two ranks, the middle on one
WAYS: dict[str, tuple[dict[str, Any], list[tuple[int, int]]]] = {
    "plain": ({}, [(1, 0), (0, 2), (1, 1), (2, LAST), (1, -1)]),
    "workers": ({"num_workers": 1}, [(1, 1)]),
    "accumulating": ({"accumulate": 2}, [(1, 2), (1, 0)]),
    "dispatched": ({"dispatch": True}, [(1, 1)]),
    "stream": ({"stream": True}, [(1, 1)]),
    "stream read by all": ({"stream": True, "dispatch": False}, [(1, 1)]),
    "own generator": ({"own": True}, [(1, 1), (1, 0)]),
}
PLACES = [f"{name}, epoch {e}, batch {b}" for name, (_, places) in WAYS.items() for e, b in places]


def resume_everywhere(folder: str) -> list[dict[str, bool]]:
    """Save at many places of a run, resume from each, and compare with the run never stopped."""
    said = []
    for name, (how, places) in WAYS.items():
        whole = never_stopped(**how)
        for epoch, batch in places:
            per_pass = len(whole.orders[0])
            if batch < 0:  # at the end of the pass, still inside its loop
                batch = per_pass
            place = f"{folder}/{name}-{epoch}-{batch}"
            stopped = Run(1, **how)
            for _ in range(epoch):
                stopped.epoch()
            if batch:
                stopped.epoch(batch, place)
            else:
                stopped.accelerator.save_state(place)
            resumed = Run(2, **how)  # another seed: nothing may depend on it
            resumed.accelerator.load_state(place)
            for _ in range(epoch, NUM_EPOCHS):
                resumed.epoch()
            said.append(compare(whole, resumed, epoch * per_pass + batch))
    return said


@pytest.fixture(scope="module", params=[1, 2])
def comparisons(request: Any, tmp_path_factory: pytest.TempPathFactory) -> list[list[dict]]:
    folder = str(tmp_path_factory.mktemp("resume"))
    run = notebook_launcher(resume_everywhere, (folder,), request.param, device="cpu")
    return [run[rank] for rank in range(request.param)]


@pytest.mark.parametrize("place", range(len(PLACES)), ids=PLACES)
def test_resumed_is_never_stopped(comparisons: list[list[dict]], place: int) -> None:
    assert [one for said in comparisons for one, same in said[place].items() if not same] == []


def shuffles(folder: str) -> dict[str, Any]:
    """SV04 and SV05, as they were reported."""

    def loader_of(items: int) -> tuple[Any, Any]:
        torch.manual_seed(0)
        accelerator = Accelerator(cpu=True)
        loader = DataLoader(torch.arange(items), batch_size=2, shuffle=True)
        return accelerator, accelerator.prepare(loader)

    def read(loader: Any) -> list[list[int]]:
        return [batch.tolist() for batch in loader]

    said: dict[str, Any] = {}
    accelerator, loader = loader_of(8)
    said["first"] = read(loader)
    accelerator.save_state(f"{folder}/boundary")
    said["second"] = read(loader)
    accelerator, loader = loader_of(8)
    accelerator.load_state(f"{folder}/boundary")
    said["resumed second"] = read(loader)

    accelerator, loader = loader_of(12)
    read(loader)
    second = []
    for batch in loader:
        second.append(batch.tolist())
        if len(second) == 2:
            accelerator.save_state(f"{folder}/middle")
    said["rest"], said["third"] = second[2:], read(loader)
    accelerator, loader = loader_of(12)
    accelerator.load_state(f"{folder}/middle")
    said["skipped rest"] = read(accelerator.skip_first_batches(loader, 2))
    said["skipped third"] = read(loader)
    accelerator, loader = loader_of(12)
    accelerator.load_state(f"{folder}/middle")
    said["resumed rest"] = read(loader)
    said["resumed third"] = read(loader)
    return said


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = str(tmp_path_factory.mktemp("shuffles"))
    run = notebook_launcher(shuffles, (folder,), 2, device="cpu")
    return [run[0], run[1]]


def test_a_resume_between_epochs_reads_the_next_epochs_order(orders: list[dict]) -> None:
    """SV04."""
    for said in orders:
        assert said["resumed second"] == said["second"] != said["first"]


@pytest.mark.parametrize("way", ["resumed", "skipped"])
def test_a_resume_inside_an_epoch_reads_the_rest_and_then_the_next_order(
    orders: list[dict], way: str
) -> None:
    """SV05: by load_state alone, and by load_state and skip_first_batches."""
    for said in orders:
        assert said[f"{way} rest"] == said["rest"] != []
        assert said[f"{way} third"] == said["third"]


def test_torchdatas_loader_resumes_with_its_own_samplers(tmp_path: Path) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader_of(seed: int) -> tuple[Any, Any]:
        torch.manual_seed(seed)
        accelerator = Accelerator(cpu=True)
        loader = stateful.StatefulDataLoader(torch.arange(12), batch_size=2, shuffle=True)
        return accelerator, accelerator.prepare(loader)

    accelerator, loader = loader_of(0)
    passes: list[list[list[int]]] = []
    for number in range(3):
        passes.append([])
        for batch in loader:
            passes[-1].append(batch.tolist())
            if number == 1 and len(passes[-1]) == 2:
                accelerator.save_state(tmp_path)
    accelerator, loader = loader_of(1)
    accelerator.load_state(tmp_path)
    assert [[batch.tolist() for batch in loader] for _ in range(2)] == [passes[1][2:], passes[2]]


def changes_the_world(folder: str, save: bool) -> Any:
    """Train without dropout at a fixed effective batch of 4, stopping or resuming after epoch 1."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    x = torch.randn(24, 4)
    y = (x[:, :1] + x[:, 1:2]).tanh()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    batch = 4 // accelerator.num_processes
    loader = DataLoader(TensorDataset(x, y), batch_size=batch, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if not save:
        nn.init.zeros_(accelerator.unwrap_model(model).weight)
        accelerator.load_state(folder)
    losses = []
    for epoch in range(0 if save else 1, 2):
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(accelerator.gather(loss).mean().item())
        if save and epoch == 0:
            accelerator.save_state(folder)
    return losses


def reads_a_part(folder: str, save: bool) -> list[int]:
    """Read 8 of 24 rows and save, or load and read the rest; give this rank's rows."""
    torch.manual_seed(0 if save else 1)
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(DataLoader(torch.arange(24), batch_size=2, shuffle=True))
    if not save:
        accelerator.load_state(folder)
        return [row for batch in loader for row in batch.tolist()]
    rows: list[int] = []
    for batch in loader:
        rows += batch.tolist()
        if len(rows) * accelerator.num_processes == 8:
            accelerator.save_state(folder)
            break
    return rows


@pytest.mark.parametrize(("saved_by", "loaded_by"), [(1, 2), (2, 1), (2, 4)])
def test_the_rest_of_a_pass_is_read_once_on_another_number_of_ranks(
    tmp_path: Path, saved_by: int, loaded_by: int
) -> None:
    folder = str(tmp_path / "a")
    first = notebook_launcher(reads_a_part, (folder, True), saved_by, device="cpu")
    rest = notebook_launcher(reads_a_part, (folder, False), loaded_by, device="cpu")
    read = [row for rank in range(saved_by) for row in first[rank]]
    left = [row for rank in range(loaded_by) for row in rest[rank]]
    assert len(read) == 8 and sorted(read + left) == list(range(24))


@pytest.mark.parametrize(("saved_by", "loaded_by"), [(1, 2), (2, 1), (2, 4)])
def test_a_run_goes_on_alike_on_another_number_of_ranks(
    tmp_path: Path, saved_by: int, loaded_by: int
) -> None:
    whole = notebook_launcher(
        changes_the_world, (str(tmp_path / "a"), True), saved_by, device="cpu"
    )[0]
    rest = notebook_launcher(
        changes_the_world, (str(tmp_path / "a"), False), loaded_by, device="cpu"
    )[0]
    assert len(whole) == 12 and rest == pytest.approx(whole[6:], abs=1e-6)


def trains_until_killed(root: str, alive_s: float | None) -> list[float]:
    """Resume if there is something to resume, save every step; rank 0 may be killed any moment."""
    torch.manual_seed(0)
    accelerator = Accelerator(
        cpu=True,
        project_dir=root,
        project_config=ProjectConfiguration(automatic_checkpoint_naming=True, total_limit=2),
    )
    x = torch.randn(24, 4)
    model = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    loader = DataLoader(x, batch_size=2, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if Path(root, "began").exists():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of broken ones, of rank 1's random numbers
            accelerator.load_state()
    else:
        accelerator.save_state()
        accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        Path(root, "began").touch()
        if alive_s is not None:
            threading.Timer(alive_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
    step = 0
    while loader.epoch < 4:
        for batch in loader:
            accelerator.backward((model(batch) - batch.sum(1, keepdim=True)).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            accelerator.save_state(async_save=step % 2 == 0)
    accelerator.wait_for_save()
    if alive_s is not None and accelerator.is_main_process:
        os.kill(os.getpid(), signal.SIGKILL)
    return [v for one in accelerator.get_state_dict(model).values() for v in one.flatten().tolist()]


@pytest.mark.parametrize(
    "num_kills", [4, pytest.param(60, marks=[pytest.mark.soak, pytest.mark.timeout(600)])]
)
def test_killed_again_and_again_it_ends_where_it_would_have(tmp_path: Path, num_kills: int) -> None:
    whole = notebook_launcher(trains_until_killed, (str(tmp_path / "a"), None), 2, device="cpu")
    moments = random.Random(0)
    for _ in range(num_kills):
        with pytest.raises(WorkerDied, match="SIGKILL"):
            alive_s = moments.uniform(0.0, 0.2)
            notebook_launcher(trains_until_killed, (str(tmp_path / "b"), alive_s), 2, device="cpu")
    rest = notebook_launcher(trains_until_killed, (str(tmp_path / "b"), None), 2, device="cpu")
    assert rest[0] == rest[1] == whole[0]

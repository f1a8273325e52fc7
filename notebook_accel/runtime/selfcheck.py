"""What ``notebook-accel test`` runs on every rank: does training here do what it should?

Each check says what it found. The losses are compared outside, with those of one process: the
batch of all ranks together is the same in both runs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel.ranks.seeding import set_seed
from notebook_accel.runtime.accelerator import Accelerator
from notebook_accel.runtime.operations import broadcast_object_list, gather_object

STEPS = 6
_SEED = 7


class Wrong(Exception):
    """A check found something that is not as it should be; the message is the finding."""


def check_collectives(accelerator: Accelerator) -> str:
    """Numbers and objects of all ranks come together on each of them."""
    rank, size = accelerator.process_index, accelerator.num_processes
    mine = torch.tensor([float(rank)], device=accelerator.device)
    every = accelerator.gather(mine).tolist()
    _expect(every == [float(r) for r in range(size)], f"gather gave {every}")
    total = accelerator.reduce(mine, reduction="sum").item()
    _expect(total == size * (size - 1) / 2, f"reduce gave {total}")
    told = broadcast_object_list([f"from rank {rank}"])
    _expect(told == ["from rank 0"], f"broadcast gave {told}")
    names = gather_object([f"rank {rank}"])
    _expect(names == [f"rank {r}" for r in range(size)], f"gather_object gave {names}")
    accelerator.wait_for_everyone()
    return "gather, reduce, broadcast and a barrier do the same on every rank"


def check_sharding(accelerator: Accelerator) -> str:
    """Every sample is seen, and counted once although the last batch is uneven."""
    size = 4 * accelerator.num_processes + 1
    loader = accelerator.prepare(DataLoader(TensorDataset(torch.arange(size)), batch_size=2))
    seen: list[int] = []
    num_batches = 0
    for (batch,) in loader:
        seen += accelerator.gather_for_metrics(batch).tolist()
        num_batches += 1
    _expect(sorted(seen) == list(range(size)), f"{size} samples were counted as {sorted(seen)}")
    share = accelerator.gather(torch.tensor([num_batches], device=accelerator.device)).tolist()
    _expect(len(set(share)) == 1, f"ranks had {share} batches")
    return f"{size} samples in batches of 2: each counted once, {share[0]} batches a rank"


def train(accelerator: Accelerator, batch: int) -> tuple[list[float], Callable[[], float], Any]:
    """Train a small model on ``batch`` samples a step over all ranks.

    Gives the losses, a function that takes one more step, and the model.
    """
    set_seed(_SEED)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.randn(batch * STEPS, 8)
    data = TensorDataset(x, x[:, :3].argmax(1))
    loader = DataLoader(data, batch_size=batch // accelerator.num_processes)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    def step(given: Any) -> float:
        inputs, labels = given
        loss = nn.functional.cross_entropy(model(inputs), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return float(accelerator.gather(loss.detach().reshape(1)).mean())

    losses = [step(given) for given in loader]
    first = next(iter(loader))
    return losses, lambda: step(first), model


def check_checkpoint(accelerator: Accelerator, again: Callable[[], float], model: Any) -> str:
    """A step after loading is the step after saving."""
    with tempfile.TemporaryDirectory(prefix="notebook_accel-test-") as mine:
        folder = str(broadcast_object_list([mine])[0])
        accelerator.save_state(folder)
        after_saving = again()
        again()
        accelerator.load_state(folder)
        after_loading = again()
        files = len(list(Path(folder).rglob("*")))
        accelerator.wait_for_everyone()  # nobody deletes it while another still reads
    _expect(
        abs(after_saving - after_loading) <= 1e-6 * abs(after_saving),
        f"the loss after saving was {after_saving:.7f}, after loading {after_loading:.7f}",
    )
    return (
        f"saved {files} files, trained on, loaded: the next loss is the same ({after_loading:.4f})"
    )


def run(batch: int) -> dict[str, Any]:
    """Make all checks on this rank."""
    accelerator = Accelerator()
    found: list[dict[str, Any]] = []

    def note(name: str, check: Callable[[], str]) -> None:
        try:
            found.append({"name": name, "ok": True, "said": check()})
        except Wrong as wrong:
            found.append({"name": name, "ok": False, "said": str(wrong)})

    note("collectives", lambda: check_collectives(accelerator))
    note("sharding", lambda: check_sharding(accelerator))
    losses, again, model = train(accelerator, batch)
    note("checkpoint", lambda: check_checkpoint(accelerator, again, model))
    told = {
        "checks": found,
        "losses": losses,
        "num_processes": accelerator.num_processes,
        "device": str(accelerator.device),
        "mixed_precision": accelerator.mixed_precision,
        "is_main": accelerator.is_main_process,
    }
    accelerator.end_training()
    return told


def main() -> None:
    """Run the checks as a launched script; the main rank writes what was found to a file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--batch", type=int, required=True)
    options = parser.parse_args()
    told = run(options.batch)
    if told.pop("is_main"):
        Path(options.out).write_text(json.dumps(told))


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Wrong(otherwise)


if __name__ == "__main__":
    main()

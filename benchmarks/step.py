"""What a training step costs beyond the bare PyTorch loop, beside accelerate.

A tiny model (Linear 4-16-2, batch 32, plain SGD, one thread), so that what is not PyTorch shows.
All ways of a row run in turn in one process, in interleaved rounds; a number is the median over
rounds of CPU time relative to the bare loop *of the same round*, so a loaded machine blurs it
little. Within a launched worker, "ours" runs out of the launch's sight and "live" within it: losses
captured, progress counted, collectives watched.

    python benchmarks/step.py --ranks 1 2
"""

from __future__ import annotations

import argparse
import contextvars
import importlib.util
import platform
import random
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

RESULTS = Path(__file__).parent / "results" / "step.md"
BATCH_SIZE = 32
NUM_BATCHES = 64  # of a pass over the loader, each rank's
ROWS = ("train step", "with accumulate", "accumulation 4", "bf16", "loop with loader", "evaluation")
WAYS = ("bare", "ours", "live", "accelerate")
Loop = Callable[[], None]


def batch_of(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Give inputs and labels."""
    torch.manual_seed(0)
    return torch.randn(size, 4), torch.randint(0, 2, (size,))


def parts(size: int) -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    """Make what a training script makes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    data = TensorDataset(*batch_of(BATCH_SIZE * NUM_BATCHES * size))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return model, optimizer, DataLoader(data, batch_size=BATCH_SIZE)


def bare_loop(row: str, num_steps: int, rank: int, size: int) -> Loop:
    """Give ``num_steps`` steps of the bare loop; on several ranks with bare DDP."""
    model, optimizer, loader = parts(size)
    if size > 1:
        share = [batch for i, batch in enumerate(loader.batch_sampler) if i % size == rank]
        loader = DataLoader(loader.dataset, batch_sampler=share)
        model = DistributedDataParallel(model)
    x, y = batch_of(BATCH_SIZE)
    loss_of = nn.functional.cross_entropy

    def train() -> None:
        for _ in range(num_steps):
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()

    def accumulate() -> None:
        for i in range(num_steps):
            if (i + 1) % 4:
                if size > 1:
                    with model.no_sync():
                        (loss_of(model(x), y) / 4).backward()
                else:
                    (loss_of(model(x), y) / 4).backward()
            else:
                (loss_of(model(x), y) / 4).backward()
                optimizer.step()
                optimizer.zero_grad()

    def bf16() -> None:
        for _ in range(num_steps):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(x).float()
            loss_of(out, y).backward()
            optimizer.step()

    def loop() -> None:
        for _ in range(max(1, num_steps // NUM_BATCHES)):
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss_of(model(inputs), labels).backward()
                optimizer.step()

    def evaluate() -> None:
        seen = []
        for _ in range(max(1, num_steps // NUM_BATCHES)):
            for inputs, labels in loader:
                with torch.no_grad():
                    pair = model(inputs), labels
                if size > 1:
                    pair = tuple(map(gather, pair))
                seen.append(pair)

    def gather(tensor: torch.Tensor) -> torch.Tensor:
        everybody = [torch.empty_like(tensor) for _ in range(size)]
        dist.all_gather(everybody, tensor)
        return torch.cat(everybody)

    return dict(zip(ROWS, (train, train, accumulate, bf16, loop, evaluate), strict=True))[row]


def loop_with(accelerator: Any, row: str, num_steps: int, size: int) -> Loop:
    """Give the same steps through an Accelerator, ours or the other."""
    model, optimizer, loader = accelerator.prepare(*parts(size))
    x, y = batch_of(BATCH_SIZE)
    loss_of = nn.functional.cross_entropy

    def train() -> None:
        for _ in range(num_steps):
            optimizer.zero_grad()
            accelerator.backward(loss_of(model(x), y))
            optimizer.step()

    def accumulate() -> None:
        for _ in range(num_steps):
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model(x), y))
                optimizer.step()
                optimizer.zero_grad()

    def loop() -> None:
        for _ in range(max(1, num_steps // NUM_BATCHES)):
            for inputs, labels in loader:
                optimizer.zero_grad()
                accelerator.backward(loss_of(model(inputs), labels))
                optimizer.step()

    def evaluate() -> None:
        seen = []
        for _ in range(max(1, num_steps // NUM_BATCHES)):
            for inputs, labels in loader:
                with torch.no_grad():
                    pair = model(inputs), labels
                seen.append(accelerator.gather_for_metrics(pair))

    return dict(zip(ROWS, (train, accumulate, accumulate, train, loop, evaluate), strict=True))[row]


def accelerator_for(way: str, row: str) -> Any:
    """Make the Accelerator of a way, with the settings of a row."""
    settings = {
        "cpu": True,
        "gradient_accumulation_steps": 4 if row == "accumulation 4" else 1,
        "mixed_precision": "bf16" if row == "bf16" else "no",
    }
    if way == "accelerate":
        from accelerate import Accelerator as Other
        from accelerate.state import AcceleratorState, GradientState

        GradientState._reset_state()
        AcceleratorState._reset_state()
        return Other(**settings)
    from notebook_accel import Accelerator

    return Accelerator(**settings)


def measure(rows: list[str], ways: list[str], rounds: int, num_steps: int) -> dict[str, Any]:
    """Give for each row and way: median CPU microseconds a step, and the ratio to bare."""
    from notebook_accel import Accelerator

    world = Accelerator(cpu=True)
    rank, size = world.process_index, world.num_processes
    shuffle = random.Random(0)  # alike on all ranks: they must run the same way together
    out = {}
    for row in rows:
        loops = {}
        for way in ways:
            sight = contextvars.copy_context() if way == "live" else contextvars.Context()
            if way == "bare":
                loop = bare_loop(row, num_steps, rank, size)
            else:
                made = sight.run(accelerator_for, way, row)
                loop = sight.run(loop_with, made, row, num_steps, size)
            loops[way] = lambda sight=sight, loop=loop: sight.run(loop)
            torch.set_num_threads(1)  # accelerate chooses for itself
            loops[way]()
        took: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way in shuffle.sample(ways, len(ways)):
                start = time.thread_time()
                loops[way]()
                took[way].append((time.thread_time() - start) / num_steps * 1e6)
        out[row] = {
            way: (
                median(took[way]),
                median(a / b for a, b in zip(took[way], took["bare"], strict=True)),
            )
            for way in ways
        }
    return out


def main() -> None:
    """Measure, print and, with ``--save``, keep the tables."""
    from notebook_accel import notebook_launcher

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--steps", type=int, default=NUM_BATCHES * 2)
    parser.add_argument("--save", action="store_true")
    asked = parser.parse_args()
    there = importlib.util.find_spec("accelerate") is not None
    ways = [way for way in WAYS if there or way != "accelerate"]
    tables = []
    for size in asked.ranks:
        settings = (asked.rows, ways, asked.rounds, asked.steps)
        run = notebook_launcher(measure, settings, size, device="cpu")
        lines = [f"## {size} rank{'s, beside bare DDP' if size > 1 else ''}", ""]
        lines += [
            "| row | bare, us | " + " | ".join(ways[1:]) + " |",
            "|" + " --- |" * (len(ways) + 1),
        ]
        for row, found in run[0].items():
            ratios = " | ".join(f"{found[way][1]:.3f}" for way in ways[1:])
            lines.append(f"| {row} | {found['bare'][0]:.0f} | {ratios} |")
        print("\n".join(lines) + "\n", flush=True)
        tables += [*lines, ""]
    if asked.save:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text("\n".join([*_facts(asked, there), *tables]))


def _facts(asked: argparse.Namespace, there: bool) -> list[str]:
    other = f", accelerate {version('accelerate')}" if there else ""
    return [
        "# What a training step costs beyond the bare loop",
        "",
        f"{date.today()}; Python {platform.python_version()}, torch {torch.__version__}{other}; "
        f"{asked.rounds} rounds of {asked.steps} steps. "
        "CPU time relative to the bare loop, medians of rounds.",
        "",
    ]


if __name__ == "__main__":
    main()

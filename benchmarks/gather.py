"""What gathering a (prediction, label) pair for metrics takes, beside two bare all_gathers.

Real ranks over gloo, interleaved rounds, medians over rounds of wall time relative to the bare way
*of the same round*. Ranks meet before each round, so nobody waits for a late one.

    python benchmarks/gather.py --ranks 2 4
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

RESULTS = Path(__file__).parent / "results" / "gather.md"
BATCH_SIZE = 32
NUM_CLASSES = (2, 10, 1000)


def measure(num_classes: int, rounds: int, num_calls: int) -> dict[str, Any]:
    """Give for each way: median microseconds a pair, and the ratio to bare."""
    from notebook_accel import Accelerator

    accelerator = Accelerator(cpu=True)
    size = accelerator.num_processes
    pair = torch.randn(BATCH_SIZE, num_classes), torch.randint(0, num_classes, (BATCH_SIZE,))

    def bare() -> None:
        for tensor in pair:
            everybody = [torch.empty_like(tensor) for _ in range(size)]
            dist.all_gather(everybody, tensor)
            torch.cat(everybody)

    ways = {"bare": bare, "ours": lambda: accelerator.gather_for_metrics(pair)}
    if importlib.util.find_spec("accelerate") is not None:
        from accelerate import Accelerator as Other

        other = Other(cpu=True)
        ways["accelerate"] = lambda: other.gather_for_metrics(pair)
    torch.set_num_threads(1)
    took: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, gather in ways.items():
            dist.barrier()
            start = time.perf_counter()
            for _ in range(num_calls):
                gather()
            took[way].append((time.perf_counter() - start) / num_calls * 1e6)
    return {
        way: (median(all_), median(a / b for a, b in zip(all_, took["bare"], strict=True)))
        for way, all_ in took.items()
    }


def main() -> None:
    """Measure, print and, with ``--save``, keep the table."""
    from notebook_accel import notebook_launcher

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--save", action="store_true")
    asked = parser.parse_args()
    lines = [
        "# Gathering a (prediction, label) pair for metrics, beside two bare all_gathers",
        "",
        f"{date.today()}; torch {torch.__version__}, gloo; batch {BATCH_SIZE}; "
        f"{asked.rounds} rounds of {asked.calls} calls, wall time, medians of rounds.",
        "",
        "| ranks | classes | bare, us | ours | accelerate |",
        "| --- | --- | --- | --- | --- |",
    ]
    for size in asked.ranks:
        for num_classes in NUM_CLASSES:
            settings = (num_classes, asked.rounds, asked.calls)
            found = notebook_launcher(measure, settings, size, device="cpu")[0]
            ratios = [f"{found[way][1]:.2f}" for way in ("ours", "accelerate") if way in found]
            row = [size, num_classes, f"{found['bare'][0]:.0f}", *ratios]
            lines.append("| " + " | ".join(map(str, row)) + " |")
    print("\n".join(lines))
    if asked.save:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

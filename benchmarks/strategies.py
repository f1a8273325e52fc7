"""What strategies cost and save: step time beside bare code, and bytes on each rank.

Time: each strategy trains a small network (4 blocks of width 256, 64 rows a rank; where sequences
are divided, attention over 4 rows of 128 tokens) beside bare torch or bare DeepSpeed code that lays
the same model out the same way (``bare_strategies.py``). Both run in one launch, in interleaved
rounds; a number is the CPU time of a rank's main thread relative to the bare code's *in the same
round*, over all ranks and rounds: median and quartiles. "ours" runs out of the launch's sight,
"live" within it: losses captured, collectives watched.

Bytes: a rank's parameters, gradients and optimizer states are its living tensors after a backward
pass and after an update. "peak" is the most there was, also within forward passes, when a part of
the model is whole.

    python benchmarks/strategies.py --save
"""

from __future__ import annotations

import argparse
import contextvars
import gc
import importlib.util
import platform
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import bare_strategies as bare
from bare_strategies import Net, Step, attends, loss_of, model_and_batch, reader_and_batch

RESULTS = Path(__file__).parent / "results" / "strategies.md"


# ── ours ──────────────────────────────────────────────────────────────────────────────────────


def ours(wish: Any) -> Step:
    from notebook_accel import Accelerator

    in_parts = type(wish).__name__ == "SequenceParallel"
    model, x, y = reader_and_batch(attends) if in_parts else model_and_batch()
    accelerator = Accelerator(cpu=True, strategy=wish)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    if in_parts:
        loader = DataLoader(TensorDataset(x, y), batch_size=len(x))
        ((x, y),) = accelerator.prepare(loader)

    def step() -> None:
        optimizer.zero_grad()
        accelerator.backward(loss_of(model(x), y))
        optimizer.step()

    def staged_step() -> None:
        optimizer.zero_grad()
        accelerator.forward_backward(model, (x, y), loss_of)
        optimizer.step()

    has_stages = type(wish).__name__ == "Pipeline" or getattr(wish, "pp_degree", 1) > 1
    return staged_step if has_stages else step


@dataclass(frozen=True)
class Row:
    """One strategy: its wish as it is written, the number of ranks, and the bare code."""

    wish: str
    size: int
    bare: Callable[[], Step]


ROWS = {
    "DDP": Row("DDP()", 2, bare.bare_ddp),
    "FSDP2": Row("FSDP()", 2, bare.bare_fsdp),
    "FSDP2 in copies": Row("FSDP(replicas=2)", 4, bare.bare_hsdp),
    "tensor": Row("TensorParallel(size=2)", 2, bare.bare_tensor),
    "tensor and FSDP2": Row("TensorParallel(size=2)", 4, bare.bare_tensor_and_fsdp),
    "pipeline": Row("Pipeline(stages=2, split=('blocks.2',))", 2, bare.bare_pipeline),
    "sequence": Row("SequenceParallel(size=2)", 2, bare.bare_sequence),
    "Megatron, layers": Row("Megatron(tp_degree=2)", 2, bare.bare_tensor),
    "Megatron, stages": Row("Megatron(pp_degree=2)", 2, bare.bare_pipeline),
    "ZeRO-1": Row("DeepSpeed(zero_stage=1)", 2, partial(bare.bare_zero, 1)),
    "ZeRO-2": Row("DeepSpeed(zero_stage=2)", 2, partial(bare.bare_zero, 2)),
    "ZeRO-3": Row("DeepSpeed(zero_stage=3)", 2, partial(bare.bare_zero, 3)),
}


def wish_of(text: str) -> Any:
    import notebook_accel

    return eval(text, {name: getattr(notebook_accel, name) for name in [text.partition("(")[0]]})


def ratios(name: str, rounds: int, num_steps: int) -> dict[str, list[float]]:
    """Give the CPU time of each round relative to the bare code's; of that, microseconds a step."""
    from notebook_accel import Accelerator

    row = ROWS[name]
    wish = wish_of(row.wish)
    Accelerator(cpu=True, strategy=wish)  # joins the ranks
    torch.set_num_threads(1)
    shuffle = random.Random(0)  # alike on all ranks: they must run the same way together
    loops: dict[str, Step] = {}
    for way in ("bare", "ours", "live"):
        sight = contextvars.copy_context() if way == "live" else contextvars.Context()
        step = sight.run(row.bare) if way == "bare" else sight.run(ours, wish)

        def loop(sight: Any = sight, step: Step = step) -> None:
            for _ in range(num_steps):
                sight.run(step)

        loops[way] = loop
        loop()
    took: dict[str, list[float]] = {way: [] for way in loops}
    for _ in range(rounds):
        for way in shuffle.sample(list(loops), len(loops)):
            start = time.thread_time()
            loops[way]()
            took[way].append((time.thread_time() - start) / num_steps * 1e6)
    return {
        "bare": took["bare"],
        **{
            way: [a / b for a, b in zip(took[way], took["bare"], strict=True)]
            for way in ("ours", "live")
        },
    }


# ── bytes ─────────────────────────────────────────────────────────────────────────────────────

ZERO_3 = """DeepSpeed(zero_stage=3, config={"zero_optimization": {
    "stage3_prefetch_bucket_size": 0, "stage3_max_live_parameters": 1_000_000,
    "stage3_max_reuse_distance": 0, "stage3_param_persistence_threshold": 1_000,
    "reduce_bucket_size": 530_000}})"""
SHARDING = {"FSDP2": "FSDP()", "ZeRO-3": ZERO_3}


def tensors() -> Iterator[Tensor]:
    from torch.distributed.tensor import DTensor

    for one in gc.get_objects():
        if isinstance(one, Tensor) and not isinstance(one, DTensor):
            yield one


def num_bytes(but: set[int]) -> int:
    """How much memory living tensors have, less that of storages in ``but``."""
    storages = {}
    for one in tensors():
        storage = one.untyped_storage()
        if storage.data_ptr() not in but:
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def weigh(text: str) -> dict[str, int]:
    """Give the bytes of this rank: parameters (whole), and what lives at which moment."""
    from notebook_accel import Accelerator

    accelerator = Accelerator(cpu=True, strategy=wish_of(text))
    x, y = torch.randn(8, 16), torch.randn(8, 1)
    gc.collect()
    before = {one.untyped_storage().data_ptr() for one in tensors()}
    torch.manual_seed(0)
    model: Any = Net(width=512, depth=8)
    whole = sum(one.nbytes for one in model.parameters())
    within: list[int] = []
    for block in model.blocks:
        block.up.register_forward_hook(lambda *_: within.append(num_bytes(before)))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    after: list[int] = []
    for number in range(3):
        loss = loss_of(model(x), y)
        accelerator.backward(loss)
        del loss
        gc.collect()
        after.append(num_bytes(before))
        optimizer.step()
        gc.collect()
        after.append(num_bytes(before))
        optimizer.zero_grad()
        if number == 0:  # states are made in the first update
            after.clear()
            within.clear()
    return {"whole": whole, "resident": max(after), "peak": max(*after, *within)}


# ── tables ────────────────────────────────────────────────────────────────────────────────────


def time_table(names: list[str], rounds: int, num_steps: int) -> list[str]:
    from notebook_accel import notebook_launcher

    lines = ["| strategy | ranks | bare, ms a step | ours | live |", "|" + " --- |" * 5]
    for name in names:
        size = ROWS[name].size
        run = notebook_launcher(ratios, (name, rounds, num_steps), size, device="cpu")
        found = {way: [one for rank in run for one in rank[way]] for way in run[0]}
        low, middle, high = quantiles(found["bare"], n=4)
        cells = [name, str(size), f"{middle / 1e3:.1f} ({low / 1e3:.1f} to {high / 1e3:.1f})"]
        for way in ("ours", "live"):
            low, middle, high = quantiles(found[way], n=4)
            cells.append(f"{middle:.3f} ({low:.3f} to {high:.3f})")
        lines.append("| " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    return lines


def byte_table(names: list[str], sizes: list[int]) -> list[str]:
    from notebook_accel import notebook_launcher

    lines = [
        "| strategy | ranks | MB on a rank | of one rank's | to 1/N | peak, MB | to 1/N |",
        "|" + " --- |" * 7,
    ]
    for name in names:
        alone: dict[str, int] = {}
        for size in sizes:
            every = list(notebook_launcher(weigh, (SHARDING[name],), size, device="cpu"))
            found = {key: max(rank[key] for rank in every) for key in every[0]}
            alone = alone or found
            cells = [name, str(size), f"{found['resident'] / 1e6:.1f}"]
            cells.append(f"{found['resident'] / alone['resident']:.3f}")
            cells.append(f"{found['resident'] * size / alone['resident'] - 1:+.1%}")
            cells.append(f"{found['peak'] / 1e6:.1f}")
            cells.append(f"{found['peak'] * size / alone['peak'] - 1:+.1%}")
            lines.append("| " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Measure, print and, with ``--save``, keep the tables."""
    there = importlib.util.find_spec("deepspeed") is not None
    rows = [name for name in ROWS if there or not name.startswith("ZeRO")]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="*", default=rows, choices=rows)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--save", action="store_true")
    asked = parser.parse_args()
    times = time_table(asked.rows, asked.rounds, asked.steps)
    sharding = [name for name in SHARDING if there or not name.startswith("ZeRO")]
    weights = byte_table(sharding, asked.ranks) if asked.ranks else []
    if asked.save:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text("\n".join(page(asked, there, times, weights)))


def page(asked: argparse.Namespace, there: bool, times: list[str], weights: list[str]) -> list[str]:
    """Give the lines of the page that is kept."""
    other = f", deepspeed {version('deepspeed')}" if there else ""
    facts = f"{date.today()}; Python {platform.python_version()}, torch {torch.__version__}{other}"
    return [
        "# What strategies cost and save",
        "",
        f"{facts}; {asked.rounds} rounds of {asked.steps} steps, over gloo.",
        "",
        "## Step time beside bare code",
        "",
        "CPU time of a rank's main thread relative to the bare code's of the same round: median "
        "(quartiles) over all ranks and rounds.",
        "",
        *times,
        "",
        "## Bytes on a rank",
        "",
        "Parameters, gradients and AdamW's states of a network of 8.4 million parameters, the "
        "heaviest rank's: after backward passes and updates, and at most, looked at in each block "
        'of each forward pass too. "to 1/N" is how far it is from an N-th of one rank\'s. '
        "ZeRO-3's buckets and prefetching are made to fit so small a model: with its defaults it "
        "gathers all of it.",
        "",
        *weights,
        "",
    ]


if __name__ == "__main__":
    main()

"""What a checkpoint costs, beside torch.save, torch.distributed.checkpoint and Accelerate.

A model of 100 million parameters with AdamW's state (1.2 GB), on the CPU, files in the page cache.
Every number comes from a fresh process, which has saved once before its clock starts (not for the
copy in memory and the first stall: their memory must be fresh); rounds are shuffled, medians.
*memory* is the process's own (anonymous) memory above what it held before: 0 for a save that copies
nothing. *with a step* adds the first optimizer step, in which lazily loaded tensors are read.
CPU is the time of the calling thread: where others use the machine too, its ratios are the ones to
read.

    python benchmarks/checkpoint.py --rounds 5
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent / "results" / "checkpoint.md"
TIMEOUT_S = 300.0
WIDTH, DEPTH = 1024, 95  # 95 x 1024 x 1025 parameters: 99.7 million
SAVES = {
    "ours": "ours",
    "ours, async: first stall": "ours_async",
    "ours, async: later stalls": "ours_async_again",
    "a copy in memory": "copy",
    "torch.save": "torch",
    "torch.distributed.checkpoint": "dcp",
    "accelerate": "accelerate",
}
LOADS = {"ours": "ours", "torch.load": "torch", "accelerate": "accelerate"}


class Peak:
    """The most anonymous memory of this process inside the block, above what it held before."""

    def __enter__(self) -> Peak:
        self._before = self._most = _anonymous_bytes()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.bytes = self._most - self._before

    def _watch(self) -> None:
        while not self._over.wait(0.01):
            self._most = max(self._most, _anonymous_bytes())


class Clock:
    """Time since it was made: by the wall, and of the processor in this thread."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.thread_time()

    def read(self) -> dict[str, float]:
        return {"wall": time.perf_counter() - self._wall, "cpu": time.thread_time() - self._cpu}


def _anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


def build(method: str) -> tuple[Any, Any, Any]:
    """Make the model, its optimizer with a state, and whoever saves them."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    accelerator = None
    if method.startswith("ours"):
        from notebook_accel import Accelerator

        accelerator = Accelerator(cpu=True)
    elif method == "accelerate":
        from accelerate import Accelerator as Theirs

        accelerator = Theirs(cpu=True)
    if accelerator is not None:
        model, optimizer = accelerator.prepare(model, optimizer)
    return accelerator, model, optimizer


def saver(method: str, accelerator: Any, model: Any, optimizer: Any) -> Callable[[Path], Any]:
    """A function that saves into a folder; what it returns, if anything, waits for the end."""
    import torch
    import torch.distributed.checkpoint as dcp

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def by_torch(folder: Path) -> None:
        folder.mkdir(parents=True)
        torch.save(model.state_dict(), folder / "model.bin")
        torch.save(optimizer.state_dict(), folder / "optimizer.bin")

    def copy(folder: Path) -> Any:
        moments = [one for of in optimizer.state_dict()["state"].values() for one in of.values()]
        return [one.clone() for one in [*model.state_dict().values(), *moments]]

    def ours_async(folder: Path) -> Any:
        accelerator.save_state(folder, async_save=True)
        return accelerator.wait_for_save

    return {
        "ours": lambda folder: accelerator.save_state(folder),
        "ours_async": ours_async,
        "ours_async_again": ours_async,
        "copy": copy,
        "torch": by_torch,
        "dcp": lambda folder: dcp.save(state(), checkpoint_id=folder, no_dist=True),
        "accelerate": lambda folder: accelerator.save_state(str(folder)),
    }[method]


def loader(method: str, accelerator: Any, model: Any, optimizer: Any) -> Callable[[Path], None]:
    """A function that loads from a folder."""
    import torch

    def by_torch(folder: Path) -> None:
        model.load_state_dict(torch.load(folder / "model.bin"))
        optimizer.load_state_dict(torch.load(folder / "optimizer.bin"))

    if method == "torch":
        return by_torch
    return lambda folder: accelerator.load_state(str(folder))


def child(kind: str, method: str, room: Path) -> dict[str, float]:
    """Measure one thing in this process."""
    parts = build(method)
    if kind == "save":
        save = saver(method, *parts)
        fresh = method in ("copy", "ours_async")
        for name in ("timed",) if fresh else ("warm", "timed"):
            with Peak() as peak:
                clock = Clock()
                later = save(room / name)
                took = clock.read()
                if callable(later):
                    later()
            del later
            shutil.rmtree(room / name, ignore_errors=True)
        return {**took, "bytes": peak.bytes}
    saver(method, *parts)(room / "saved")
    parts[2].state.clear()  # as in a run that has just started
    load = loader(method, *parts)
    with Peak() as peak:
        clock = Clock()
        load(room / "saved")
        took = clock.read()
    parts[2].step()
    return {**took, "bytes": peak.bytes, "with_step": clock.read()["cpu"]}


def measure(kind: str, method: str) -> dict[str, float]:
    """Measure one thing in a fresh process."""
    with tempfile.TemporaryDirectory() as room:
        command = [sys.executable, __file__, "--child", kind, method, room]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(kind: str, names: dict[str, str], found: dict[Any, list[dict[str, float]]]) -> str:
    """Write medians, and their ratio to accelerate's (or torch's, without it)."""

    def middle(name: str, what: str) -> float:
        values = [one[what] for one in found[kind, name]]
        return median(values) if values else float("nan")

    base = "accelerate" if found[kind, "accelerate"] else f"torch.{kind}"
    columns = {"wall": f"{kind}: wall (s)", "cpu": "CPU (s)"}
    if kind == "load":
        columns["with_step"] = "with a step: CPU (s)"
    head = [kind, *(part for title in columns.values() for part in (title, f"/ {base}"))]
    lines = [[*head, "memory (MB)"], ["---"] * (len(head) + 1)]
    for name in names:
        cells = [name]
        for one in columns:
            ratio = middle(name, one) / middle(base, one)
            cells += [f"{middle(name, one):.2f}", f"{ratio:.2f}"]
        lines.append([*cells, f"{middle(name, 'bytes') / 1e6:.0f}"])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", nargs=3, metavar=("KIND", "METHOD", "FOLDER"))
    options = parser.parse_args()
    if options.child:
        kind, method, room = options.child
        print(json.dumps(child(kind, method, Path(room))))
        return
    jobs = [("save", name, method) for name, method in SAVES.items()]
    jobs += [("load", name, method) for name, method in LOADS.items()]
    found: dict[Any, list[dict[str, float]]] = defaultdict(list)
    for number in range(options.rounds):
        random.shuffle(jobs)
        for kind, name, method in jobs:
            if method == "accelerate" and not importlib.util.find_spec("accelerate"):
                continue
            found[kind, name].append(measure(kind, method))
            print(f"round {number + 1}: {kind} {name}: {found[kind, name][-1]}", flush=True)
    facts = (
        f"{os.cpu_count()} cores, {platform.platform()}, torch {version('torch')}; "
        f"{options.rounds} rounds."
    )
    words = (__doc__ or "").split("\n\n    python")[0]
    tables = [table("save", SAVES, found), table("load", LOADS, found)]
    text = "\n\n".join(["# Checkpoints", words, facts, *tables]) + "\n"
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text)
    print(text)


if __name__ == "__main__":
    main()

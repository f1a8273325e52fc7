"""What it costs to watch: a refresh of the panel, a loss in the worker, a training under watch.

    python benchmarks/ui.py --save
    python benchmarks/ui.py --worker   # 3 s: only what a worker pays

A refresh is measured in a real kernel, on the way on which the view takes it: kernel CPU (all its
threads, so that encoding and sending count) and bytes on the wire, at three lengths of the run. The
slow-down is that of two ranks' CPU time per step with the panel on and off, in interleaved rounds.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from datetime import date
from pathlib import Path
from statistics import quantiles
from types import SimpleNamespace

import nbformat
from nbclient import NotebookClient

RESULTS = Path(__file__).parent / "results" / "ui.md"
LENGTHS = (100, 10_000, 1_000_000)

REFRESH = """
import json, os, time
os.environ["NOTEBOOK_ACCEL_UI"] = "{surface}"
import math, random
from notebook_accel.events.history import History
from notebook_accel.events.model import Metrics, Progress, Started
from notebook_accel.ui.live import screen
from notebook_accel.ui.panel import Panel
from notebook_accel.ui.place import place

history = History()
panel = Panel(history, "2 CPU processes, fork", 2)
shown = screen(place())
for rank in (0, 1):
    panel.handle(Started(rank, os.getpid(), "cpu", 1))

def feed(first, last):
    for start in range(first, last, 1000):
        for rank in (0, 1):
            steps = range(start, min(last, start + 1000))
            points = [("loss", n, 2 / (1 + n / 1000) + random.random() / 9) for n in steps]
            where = Progress(rank, steps[-1], 0, 1, 10, 32 * steps[-1])
            for event in (Metrics(rank, points), where):
                history.handle(event)
                panel.handle(event)

class Wire:
    num_bytes = 0

session = get_ipython().kernel.session
plain = session.send
def counting(stream, msg_or_type, content=None, *args, **more):
    is_message = isinstance(msg_or_type, dict)
    said = msg_or_type["content"] if is_message else content
    Wire.num_bytes += len(json.dumps(said, default=str))
    Wire.num_bytes += sum(len(one) for one in more.get("buffers") or [])
    return plain(stream, msg_or_type, content, *args, **more)

def refresh():
    for name in ("_canvas_pace", "_line_pace", "_image_pace"):
        getattr(shown, name)._due = 0.0
    panel.tick()
    shown.refresh(panel)

feed(1, {length})
panel.began = time.monotonic() - 10
for _ in range(5):
    refresh()
took, here, number = [], [], {number}
for n in range(number):
    feed({length} + 10 * n, {length} + 10 * n + 10)
    start, begun = time.process_time(), time.thread_time()
    refresh()
    here.append(1000 * (time.thread_time() - begun))
    time.sleep(0.02)  # for the thread that sends
    took.append(1000 * (time.process_time() - start))
session.send = counting
for n in range(number, number + 5):
    feed({length} + 10 * n, {length} + 10 * n + 10)
    refresh()
session.send = plain
print("found:", json.dumps([took, Wire.num_bytes / 5, here]))
"""

BASELINE = """
import json, time
took = []
for _ in range(50):
    start = time.process_time()
    time.sleep(0.02)
    took.append(1000 * (time.process_time() - start))
print("found:", json.dumps([took, 0, []]))
"""

LONG_RUN = """
import os, time
os.environ["NOTEBOOK_ACCEL_UI"] = "png"
import torch
from notebook_accel import Accelerator, notebook_launcher

def main(num_steps):
    accelerator = Accelerator()
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = accelerator.prepare(torch.optim.SGD([weight], lr=0.01))
    for step in range(num_steps):
        loss = (weight - 1).square().sum() + torch.rand(())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % 1000 == 0:
            accelerator.log({"accuracy": step / num_steps})

run = notebook_launcher(main, (100_000,), num_processes=1, device="cpu")
"""


def run_cell(source: str) -> nbformat.NotebookNode:
    """Run one cell in a kernel of its own."""
    cell = nbformat.v4.new_code_cell(source)
    notebook = nbformat.v4.new_notebook(cells=[cell])
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    return notebook


def found(source: str) -> tuple[list[float], float, list[float]]:
    """What a cell prints after "found:"."""
    outputs = run_cell(source).cells[0].outputs
    text = "".join(one.text for one in outputs if one.output_type == "stream")
    took, num_bytes, here = json.loads(text.rpartition("found:")[2])
    return took, num_bytes, here


def of(values: Iterable[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    low, middle, high = quantiles(values, n=4)
    return low, middle, high


def refreshes(number: int) -> list[str]:
    """The table of refreshes."""
    _, idle, _ = of(found(BASELINE)[0])
    lines = [
        "| way | points | in the run's thread, ms | whole kernel, ms (quartiles) | kB sent |",
        "| --- | --- | --- | --- | --- |",
    ]
    for surface in ("canvas", "png"):
        for length in LENGTHS:
            source = REFRESH.replace("{surface}", surface).replace("{number}", str(number))
            took, num_bytes, here = found(source.replace("{length}", str(length)))
            low, middle, high = (max(0.0, one - idle) for one in of(took))
            cost = f"{middle:.2f} ({low:.2f} to {high:.2f})"
            kb = f"{num_bytes / 1000:.1f}"
            lines.append(f"| {surface} | {length:,} | {of(here)[1]:.2f} | {cost} | {kb} |")
            print(lines[-1], flush=True)
    return lines


def recording(rounds: int = 15, num_steps: int = 5000) -> list[str]:
    """The table of what a worker pays for its numbers, in microseconds; the pen has a pipe."""
    import torch

    from notebook_accel import Accelerator
    from notebook_accel.config.placement import Placement
    from notebook_accel.events import context
    from notebook_accel.events.emitter import Emitter

    read, write = os.pipe()
    os.set_blocking(read, False)
    worker = context.WorkerContext(Placement(), Emitter(0, write), SimpleNamespace(stop=False), {})
    context.enter(worker)
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    optimizer = accelerator.prepare(optimizer)  # whose learning rate is looked at
    live, loss, frame = accelerator._live, torch.tensor(0.5), sys._getframe()
    assert live is not None

    def note(step: int) -> None:
        live.note(loss, frame)
        live.stepped(step, None)

    calls: dict[str, Callable[[int], None]] = {
        "what `backward` and `step` note of a loss": note,
        "`accelerator.log` of a number": lambda step: accelerator.log({"a": 0.5}, step),
        "of a tensor": lambda step: accelerator.log({"a": loss}, step),
        "of three numbers": lambda step: accelerator.log({"a": 0.5, "b": 0.25, "c": 1.0}, step),
    }
    lines = ["| recording a loss in the worker | CPU, us (quartiles) |", "| --- | --- |"]
    for name, call in calls.items():
        took = []
        for number in range(rounds):
            start = time.process_time()
            for step in range(number * num_steps, (number + 1) * num_steps):
                call(step)
            took.append((time.process_time() - start) / num_steps * 1e6)
            while _drained(read):
                pass
        low, middle, high = of(took)
        lines.append(f"| {name} | {middle:.2f} ({low:.2f} to {high:.2f}) |")
        print(lines[-1], flush=True)
    return lines


def _drained(fd: int) -> bool:
    try:
        return bool(os.read(fd, 1 << 20))
    except BlockingIOError:
        return False


TRAINING = """
import os, json, time
import torch
from notebook_accel import Accelerator, notebook_launcher

def main(num_steps):
    accelerator = Accelerator()
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(2 * 64 * num_steps, 64)
    loader = torch.utils.data.DataLoader(data, batch_size=64)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    start, wall = time.process_time(), time.perf_counter()
    for x in loader:
        accelerator.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    return time.process_time() - start, time.perf_counter() - wall

took = {"off": [], "png": [], "canvas": []}
spent = {"off": [], "png": [], "canvas": []}
for number in range(ROUNDS + 1):
    for surface in sorted(took, key=lambda name: hash((name, number))):
        os.environ["NOTEBOOK_ACCEL_UI"] = surface
        kernel = time.process_time()
        run = notebook_launcher(main, (STEPS,), num_processes=2, device="cpu")
        if number:  # the first of each is to get warm
            took[surface].append([sum(r[0] for r in run), max(r[1] for r in run)])
            spent[surface].append(time.process_time() - kernel)
print("found:", json.dumps([took, spent]))
"""


def slow_down(rounds: int, num_steps: int) -> list[str]:
    """The table of a training of two ranks with and without the panel."""
    source = TRAINING.replace("ROUNDS", str(rounds)).replace("STEPS", str(num_steps))
    outputs = run_cell(source).cells[0].outputs
    text = "".join(one.text for one in outputs if one.output_type == "stream")
    took, spent = json.loads(text.rpartition("found:")[2])
    lines = [
        "| panel | ranks' CPU to off | wall to off | kernel CPU a run, s |",
        "| --- | --- | --- | --- |",
    ]
    for surface in ("png", "canvas"):
        cells = []
        for which in (0, 1):
            pairs = zip(took[surface], took["off"], strict=True)
            low, middle, high = of(on[which] / off[which] for on, off in pairs)
            cells.append(f"{middle:.3f} ({low:.3f} to {high:.3f})")
        cost = of(spent[surface])[1] - of(spent["off"])[1]
        lines.append(f"| {surface} | {cells[0]} | {cells[1]} | {cost:.2f} more |")
        print(lines[-1], flush=True)
    wall = of([wall for _, wall in took["off"]])[1]
    lines.append("")
    lines.append(f"A run without a panel took {wall:.1f} s; {rounds} interleaved rounds.")
    return lines


def file_kb() -> float:
    """The size of the notebook of a run of 100,000 steps, in kB."""
    text = io.StringIO()
    with redirect_stdout(text):
        notebook = run_cell(LONG_RUN)
    return len(nbformat.writes(notebook).encode()) / 1000


def main() -> None:
    """Measure, print and, with ``--save``, keep the results."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--refreshes", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--worker", action="store_true", help="only the worker's table; not saved")
    asked = parser.parse_args()
    if asked.worker:
        recording()
        return
    parts = ["## One refresh", "", *refreshes(asked.refreshes), ""]
    parts += ["## In the worker, and on disk", "", *recording(), ""]
    size = f"The notebook of a run of 100,000 steps: {file_kb():.0f} kB."
    print(size, flush=True)
    parts += [size, ""]
    parts += ["## A training of two ranks", "", *slow_down(asked.rounds, asked.steps), ""]
    if asked.save:
        head = [
            "# What it costs to watch",
            "",
            f"{date.today()}; Python {platform.python_version()}, torch {torch.__version__}, "
            f"{os.cpu_count()} cores. Aims: 1 ms a canvas refresh, 25 ms a PNG, 2 us a loss, "
            "300 kB, 1 %.",
            "",
        ]
        RESULTS.write_text("\n".join([*head, *parts]))


if __name__ == "__main__":
    main()

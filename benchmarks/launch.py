"""How long a launch takes from a notebook cell, and what a worker weighs, beside other launchers.

From the first line of the launching cell to: the first line in all workers (line), the first
finished optimizer step in all workers (step), the cell's end (return). A fresh kernel for each
run, runs shuffled, medians. cold: the first launch in a kernel; warm: the second and third. A
fourth launch weighs the workers. Only ratios within one table mean anything.

The floor has imported ``torch._dynamo`` before its clock starts; ours does that in its cold
launch, the others in every worker or never.

    python benchmarks/launch.py --repeats 5 --n 1 2 4 8
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import queue
import random
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median

from jupyter_client.manager import KernelManager

from cells import METHODS, Method, launching_cell

RESULTS = Path(__file__).parent / "results" / "launch.md"
CELL_TIMEOUT_S = 180.0
LAUNCHES = ("cold", "warm", "warm", "weigh")


@dataclass(frozen=True)
class Launch:
    """One launch: seconds since the cell's first line, bytes per worker (0 unless weighed)."""

    which: str
    line: float
    step: float
    back: float
    pss: float = 0.0
    uss: float = 0.0


class Kernel:
    """A fresh IPython kernel that runs one cell at a time and tells what it printed."""

    def __init__(self) -> None:
        self._manager = KernelManager()
        self._manager.start_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=60)

    def run(self, code: str) -> str:
        """Run ``code``; RuntimeError carries the traceback of a cell that failed or took long."""
        request = self._client.execute(code)
        printed, deadline = [], time.monotonic() + CELL_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                message = self._client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                printed.append(content["text"])
            elif kind == "error":
                raise RuntimeError("\n".join(content["traceback"]))
            elif kind == "status" and content["execution_state"] == "idle":
                return "".join(printed)
        raise RuntimeError(f"no answer after {CELL_TIMEOUT_S:.0f} s; printed: {printed}")

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


def measure(method: Method, size: int) -> Iterator[Launch]:
    """Launch ``size`` ranks four times in one fresh kernel."""
    kernel = Kernel()
    try:
        for line in kernel.run(method.prepare).splitlines():
            if line.startswith("import:"):
                yield Launch("import", *[float(line.split()[1])] * 3)
        for which in LAUNCHES:
            with tempfile.TemporaryDirectory() as folder:
                printed = kernel.run(launching_cell(folder, which == "weigh", size))
                ranks = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
            if len(ranks) != size:
                raise RuntimeError(f"{len(ranks)} of {size} ranks reported; printed: {printed}")
            times = next(line for line in printed.splitlines() if line.startswith("times:"))
            start, end = map(float, times.split()[1:])
            yield Launch(
                which,
                max(rank["line"] for rank in ranks) - start,
                max(rank["step"] for rank in ranks) - start,
                end - start,
                median(rank.get("pss", 0) for rank in ranks),
                median(rank.get("uss", 0) for rank in ranks),
            )
    finally:
        kernel.close()


def measure_all(
    names: list[str], sizes: list[int], repeats: int
) -> dict[tuple[str, int], list[Launch]]:
    """Measure every method at every size, shuffled anew in each repeat."""
    found: dict[tuple[str, int], list[Launch]] = defaultdict(list)
    for repeat in range(repeats):
        runs = [(name, size) for name in names for size in sizes]
        random.shuffle(runs)
        for name, size in runs:
            print(f"repeat {repeat + 1}: {METHODS[name].name}, n={size}", flush=True)
            try:
                found[name, size] += measure(METHODS[name], size)
            except RuntimeError as error:  # one method's failure is a gap in the table
                print(f"  failed: {str(error).strip().splitlines()[-1]}", flush=True)
    return found


def middle(launches: list[Launch], which: str, what: str) -> float:
    values = [getattr(one, what) for one in launches if one.which == which]
    return median(values) if values else float("nan")


def table(found: dict[tuple[str, int], list[Launch]], names: list[str], sizes: list[int]) -> str:
    """Write the medians, and the ratio of warm step, return and private memory to the floor."""
    head = (
        "method",
        "n",
        "cold: line, step, return (s)",
        "warm: line, step, return (s)",
        "warm step / floor",
        "warm return / floor",
        "PSS / private MB",
        "private / floor",
    )
    rows = [head, ("---",) * len(head)]
    for size in sizes:
        floor = found.get(("floor", size), [])
        for name in names:
            launches = found.get((name, size), [])
            rows.append(row(METHODS[name].name, size, launches, floor))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def row(name: str, size: int, launches: list[Launch], floor: list[Launch]) -> tuple[str, ...]:
    if not launches:
        return (name, str(size), "failed", *[""] * 5)
    trio = ("line", "step", "back")
    uss, pss = (middle(launches, "weigh", what) / 1e6 for what in ("uss", "pss"))
    return (
        name,
        str(size),
        ", ".join(f"{middle(launches, 'cold', what):.3f}" for what in trio),
        ", ".join(f"{middle(launches, 'warm', what):.3f}" for what in trio),
        f"{middle(launches, 'warm', 'step') / middle(floor, 'warm', 'step'):.2f}",
        f"{middle(launches, 'warm', 'back') / middle(floor, 'warm', 'back'):.2f}",
        f"{pss:.0f} / {uss:.0f}",
        f"{uss * 1e6 / middle(floor, 'weigh', 'uss'):.2f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--n", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    options = parser.parse_args()
    names = [
        name
        for name in options.methods
        if not METHODS[name].needs or importlib.util.find_spec(METHODS[name].needs)
    ]
    # Other launchers form a gloo world on the CPU only when they are told to.
    os.environ["ACCELERATE_USE_CPU"] = "true"
    found = measure_all(names, options.n, options.repeats)
    words = (__doc__ or "").split("\n\n    python")[0]
    imports = [one for launches in found.values() for one in launches]
    facts = (
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, "
        f"torch {version('torch')}; "
        f"{options.repeats} fresh kernels each, load average {os.getloadavg()[2]:.1f}; "
        f"importing torch._dynamo alone takes {middle(imports, 'import', 'line'):.2f} s."
    )
    text = f"# Launching\n\n{words}\n\n{facts}\n\n{table(found, names, options.n)}\n"
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text)
    print(text)


if __name__ == "__main__":
    main()

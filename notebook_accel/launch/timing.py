"""How fast a device multiplies matrices in each precision, measured in a child process.

The child opens the device and ends; the kernel stays as it was. It takes about a second, after
the seconds in which the child imports torch.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from notebook_accel.errors import LaunchError

TIMEOUT_S = 90.0
_FLAG = "timings:"
_TIMED = ("no", "bf16", "fp16")  # the types that a plain product of torch knows
_CHILD = """
import json, sys, time, torch
device, names = json.loads(sys.argv[1])
torch.set_num_threads(1)  # several wait for each other as soon as the machine is busy
dtypes = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
wait = {"cuda": torch.cuda, "mps": torch.mps}.get(device.split(":")[0])

def once(a):
    began = time.perf_counter()
    a @ a
    if wait:
        wait.synchronize()
    return time.perf_counter() - began

def seconds(n, dtype, budget_s):
    a = torch.randn(n, n, device=device).to(dtype)
    took = [once(a)]  # this one also sets things up
    while sum(took) < budget_s or (len(took) < 4 and sum(took) < 3 * budget_s):
        took.append(once(a))
    return min(took)

for _ in range(3):  # threads and libraries start with the first products
    once(torch.randn(64, 64, device=device))
sizes = (256, 512, 1024) if device == "cpu" else (1024, 2048, 4096, 8192)
for n in sizes:
    if seconds(n, torch.float32, 0.03) > 0.002:
        break
found = []
for name in names:
    try:
        found.append((name, seconds(n, dtypes[name], 0.3), ""))
    except RuntimeError as error:
        found.append((name, 0.0, str(error).splitlines()[0]))
print("timings:" + json.dumps([n, found]))
"""


@dataclass(frozen=True)
class Timing:
    """One precision: ``seconds`` of a multiplication, or why there was none (then 0 seconds).

    ``speed`` is how many times as fast as float32 it is.
    """

    precision: str
    seconds: float
    speed: float
    failure: str = ""


@dataclass(frozen=True, repr=False)
class Timings:
    """What was measured: products of two ``size`` x ``size`` matrices on ``device``."""

    device: str
    size: int
    rows: tuple[Timing, ...]

    def of(self, precision: str) -> Timing | None:
        """Give the row of one precision."""
        return next((row for row in self.rows if row.precision == precision), None)

    def table(self) -> list[list[str]]:
        """Give the rows as cells of text: a header, then the rows."""
        failed = [[f"{row.precision} failed", row.failure] for row in self.rows if row.failure]
        timed = [row for row in self.rows if not row.failure]
        return [
            ["a matrix product", *(row.precision for row in timed)],
            ["takes", *(_brief(row.seconds) for row in timed)],
            ["speed (float32 is 1)", *(f"{row.speed:.2g}" for row in timed)],
            *failed,
        ]

    @property
    def about(self) -> str:
        """What was multiplied, and where."""
        where = "one CPU thread" if self.device == "cpu" else self.device
        return f"measured with {self.size} x {self.size} matrices on {where}"

    def __repr__(self) -> str:
        header, *lines = self.table()
        widths = [max(map(len, column)) for column in zip_longest(header, *lines, fillvalue="")]
        rows = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (header, *lines)]
        return "\n".join([*rows, self.about])


def _brief(seconds: float) -> str:
    """Write a time that may be far below a second: "0.52 ms"."""
    return f"{1000 * seconds:.2g} ms" if seconds < 0.0995 else f"{seconds:.1f} s"


def time_precisions(device: str, precisions: Sequence[str]) -> Timings:
    """Measure ``precisions`` on ``device`` ("cpu", "cuda:1", "mps"); one thread of a CPU.

    fp8 is left out: its products are a library's, and its gain is that of whole layers.

    Errors: LaunchError with what the child said, when it could not.
    """
    wanted = [one for one in precisions if one in _TIMED]
    command = [sys.executable, "-c", _CHILD, json.dumps([device, wanted])]
    try:
        child = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"the timing on {device} did not end within {TIMEOUT_S:.0f} s",
            "the machine is busy, or the device does not answer",
            "try again when the device is free",
        ) from None
    rows = [line for line in child.stdout.splitlines() if line.startswith(_FLAG)]
    if not rows:
        last = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        raise LaunchError(
            f"the timing on {device} failed: {last}",
            "a child process opens the device and multiplies matrices there",
            "check that the device is free, with notebook-accel env",
        )
    return _read(device, rows[-1].removeprefix(_FLAG))


def _read(device: str, text: str) -> Timings:
    size, found = json.loads(text)
    took = {name: seconds for name, seconds, failure in found if not failure}
    base = took.get("no", 0.0)
    rows = tuple(
        Timing(name, seconds, base / seconds if seconds and base else 0.0, failure)
        for name, seconds, failure in found
    )
    return Timings(device, size, rows)

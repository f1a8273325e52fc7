"""What it costs to launch a script, beside plain Python, torchrun and ``accelerate launch``.

The script is empty, so that everything seen is the launcher's own. Wall and CPU time (of the
launcher and all its processes) are medians over runs in random order. Only numbers of one table
can be compared.

    python benchmarks/launch_script.py --repeats 15
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).parent / "results" / "launch_script.md"
ROOT = Path(__file__).parents[1]
PYTHON = sys.executable
OURS = [PYTHON, "-m", "notebook_accel", "launch"]
TORCHRUN = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
ACCELERATE = [PYTHON, "-m", "accelerate.commands.launch"]
# What runs -> command line; the script comes last.
COMMANDS = {
    "python script.py": [PYTHON],
    "ours, 1 process": [*OURS, "--cpu"],
    "torchrun, 1 process": [*TORCHRUN, "1"],
    "accelerate launch, 1 process": [*ACCELERATE, "--cpu", "--num_processes", "1"],
    "ours, 2 processes": [*OURS, "--cpu", "--num_processes", "2"],
    "torchrun, 2 processes": [*TORCHRUN, "2"],
    # With --cpu it would start one process only.
    "accelerate launch, 2 processes": [*ACCELERATE, "--multi_gpu", "--num_processes", "2"],
    "ours, 2 processes under torch's agent": [
        *OURS,
        "--cpu",
        "--num_processes",
        "2",
        "--standalone",
    ],
    "ours, --help": [*OURS, "--help"],
    "torchrun --help": [PYTHON, "-m", "torch.distributed.run", "--help"],
    "accelerate launch --help": [*ACCELERATE, "--help"],
}


def measure(command: list[str], script: Path) -> tuple[float, float]:
    """Run ``command`` once; give its wall and CPU seconds, those of all its processes."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NOTEBOOK_ACCEL_CONFIG": "off"}
    began = time.perf_counter()
    process = subprocess.Popen(
        [*command, *([] if command[-1] == "--help" else [str(script)])],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    took = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return took, used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    has_accelerate = importlib.util.find_spec("accelerate") is not None
    commands = {
        name: words
        for name, words in COMMANDS.items()
        if has_accelerate or not name.startswith("accelerate")
    }
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "empty.py"
        script.write_text("")
        for name in commands:  # once without a clock, so that files and bytecode are there
            measure(commands[name], script)
        for repeat in range(repeats):
            print(f"repeat {repeat + 1} of {repeats}", flush=True)
            for name in random.sample(list(commands), len(commands)):
                found[name].append(measure(commands[name], script))
    floor = median(wall for wall, _ in found["python script.py"])
    rows = [
        "| an empty script by | wall (s) | over python (s) | CPU (s) |",
        "| --- | --- | --- | --- |",
    ]
    for name in commands:
        wall, cpu = (median(values) for values in zip(*found[name], strict=True))
        rows.append(f"| {name} | {wall:.3f} | {wall - floor:.3f} | {cpu:.3f} |")
    others = ["torch", "accelerate"] if has_accelerate else ["torch"]
    facts = (
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python "
        f"{platform.python_version()}, {', '.join(f'{one} {version(one)}' for one in others)}; "
        f"medians of {repeats} runs, load average {os.getloadavg()[2]:.1f}."
    )
    words = (__doc__ or "").split("\n\n    python")[0]
    text = f"# Launching a script\n\n{words}\n\n{facts}\n\n" + "\n".join(rows) + "\n"
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text)
    print(text)


if __name__ == "__main__":
    main()

"""``notebook-accel test``: train a little on this machine, as configured, and check the result."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from notebook_accel.cli.parsing import count
from notebook_accel.config import store
from notebook_accel.config.resolve import RunConfig, resolve
from notebook_accel.config.words import counted
from notebook_accel.errors import LaunchError
from notebook_accel.launch.devices import accelerators, usable_cores
from notebook_accel.launch.doctor import BAD, GOOD, Finding
from notebook_accel.launch.scripts.tie import tied
from notebook_accel.launch.trial import too_many

_CHECKS = "notebook_accel.runtime.selfcheck"
_ROWS = 4  # samples of each rank in a step
_TOLERANCE = {"no": 1e-5, "fp16": 2e-2, "bf16": 2e-2}  # relative, after the steps of the check
_LAST_LINES = 30


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument("--config_file", metavar="PATH", help="settings to test (default: yours)")
    parser.add_argument("--num_processes", type=count, help="ranks on this machine")
    parser.add_argument("--cpu", action="store_true", help="on the CPU, whatever is here")
    parser.add_argument(
        "--timeout_s", type=float, default=300, help="limit of each of the two runs (default: 300)"
    )


def run(options: argparse.Namespace) -> int:
    """Launch the checks on one process and on several, and print what was found."""
    path = store.named_or_default(options.config_file)
    config = resolve({}, file=store.read(path) if path is not None else None)
    ranks = options.num_processes or _ranks(config, options.cpu)
    crowd = too_many(ranks, usable_cores())
    if crowd is not None:
        raise crowd
    where = f"settings of {path}" if path is not None else "no configuration file"
    print(f"testing {counted(ranks, 'process', 'processes')} on this machine ({where})\n")
    words = [*(["--config_file", str(path)] if path else []), *(["--cpu"] if options.cpu else [])]
    wrong = 0
    for finding in findings(ranks, words, options.timeout_s):
        print(finding, flush=True)
        wrong += finding.level == BAD
    print(f"\n{wrong} of the checks failed" if wrong else "\nall checks passed")
    return 1 if wrong else 0


def findings(ranks: int, words: list[str], timeout_s: float) -> Iterator[Finding]:
    """Run the checks as a launch with the options ``words`` would, and judge them."""
    batch = _ROWS * ranks
    try:
        told = _launched(ranks, batch, words, timeout_s)
    except LaunchError as error:
        yield Finding(BAD, "launch", error.what, error.why, error.fix)
        return
    said = f"{told['num_processes']} ranks, the first on {told['device']}"
    if told["num_processes"] != ranks:
        yield Finding(BAD, "launch", f"{said}; {ranks} were asked for")
        return
    yield Finding(GOOD, "launch", f"{said}, mixed_precision={told['mixed_precision']}")
    for check in told["checks"]:
        yield Finding(GOOD if check["ok"] else BAD, check["name"], check["said"])
    if ranks > 1:
        try:
            alone = _launched(1, batch, words, timeout_s)
        except LaunchError as error:
            yield Finding(BAD, "losses", f"alone: {error.what}", error.why, error.fix)
            return
        yield compare(told, alone)


def compare(told: dict[str, Any], alone: dict[str, Any]) -> Finding:
    """Judge the losses of several ranks by those of one process with the same batch."""
    pairs = list(zip(told["losses"], alone["losses"], strict=True))
    largest = max(abs(one - other) / max(abs(other), 1e-12) for one, other in pairs)
    said = (
        f"{len(pairs)} steps on {told['num_processes']} processes against 1 with the same batch: "
        f"largest difference {largest:.1e} of the loss"
    )
    if largest <= _TOLERANCE.get(told["mixed_precision"], 5e-2):
        return Finding(GOOD, "losses", said)
    return Finding(
        BAD,
        "losses",
        said,
        "the mean of the ranks' gradients should be the gradient of the whole batch",
        "please report it, with the output of notebook-accel env",
    )


def _launched(ranks: int, batch: int, words: list[str], timeout_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="notebook_accel-") as folder:
        out = Path(folder) / "told.json"
        line = tied(
            [
                *(sys.executable, "-m", "notebook_accel", "launch", *words),
                *("--num_machines", "1", "--machine_rank", "0", "--num_processes", str(ranks)),
                *("-m", _CHECKS, "--out", str(out), "--batch", str(batch)),
            ]
        )
        process = subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        try:
            said, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            said = _rest(process)
            what = f"the checks on {ranks} processes took longer than {timeout_s:g} s"
            raise _failed(what, said) from None
        except BaseException:
            process.terminate()
            _rest(process)
            raise
        if process.returncode or not out.exists():
            raise _failed(
                f"the checks on {ranks} processes ended with exit code {process.returncode}", said
            )
        told: dict[str, Any] = json.loads(out.read_text())
        return told


def _rest(process: subprocess.Popen[str], grace_s: float = 15.0) -> str:
    try:
        return process.communicate(timeout=grace_s)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0]


def _failed(what: str, said: str) -> LaunchError:
    last = "\n".join(said.strip().splitlines()[-_LAST_LINES:])
    print(last, file=sys.stderr)
    return LaunchError(
        what,
        "its last lines stand above",
        "notebook-accel doctor looks for what stands in the way",
    )


def _ranks(config: RunConfig, on_cpu: bool) -> int:
    """Take the configured number for this machine, else one a device, else two on the CPU."""
    configured = config.num_local_processes
    if configured is not None:
        return configured
    here = 0 if on_cpu or config["device"] == "cpu" else len(accelerators())
    return here or 2

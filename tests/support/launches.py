"""``notebook-accel launch`` as a person types it, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 90.0
# A launch under test sees neither the ranks of an outer run nor the person's own settings.
FOREIGN = ("ACCELERATE_", "OMPI_", "PMI_", "SLURM_", "TORCHELASTIC_", "MV2_", "PET_")
RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
LAUNCH = (sys.executable, "-m", "notebook_accel", "launch")


def clean_env(**more: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in (*RANKS, "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
        and not name.startswith(FOREIGN)
    }
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": path, "NOTEBOOK_ACCEL_CONFIG": "off", **more}


def launch(
    *words: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a launch to its end; ``more`` are variables of its environment."""
    return subprocess.run(
        [*LAUNCH, *map(str, words)],
        cwd=cwd,
        env=clean_env(**more) if env is None else env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def begin(*words: str | Path, cwd: Path | None = None, **more: Any) -> subprocess.Popen[str]:
    """Start a launch and leave it running."""
    return subprocess.Popen(
        [*LAUNCH, *map(str, words)],
        cwd=cwd,
        env=clean_env(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(look: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    """Give what ``look`` finds as soon as it finds something."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"nothing was found in {timeout_s:.0f} s")

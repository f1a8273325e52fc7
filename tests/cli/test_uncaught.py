"""A script that ends by an error of ours: its words, the person's lines, and no frame of ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launches import LAUNCH, clean_env

WRONG_CLASS = """
from torch import nn
from notebook_accel import Accelerator, FullyShardedDataParallelPlugin as Plugin
plugin = Plugin(transformer_cls_names_to_wrap=["Nope"], auto_wrap_policy="transformer_based_wrap")
def train():
    Accelerator(cpu=True, fsdp_plugin=plugin).prepare(nn.Linear(2, 2))
train()
"""
WRONG_WORD = "from notebook_accel import Accelerator\nAccelerator(mixed_precision='bf61')\n"
TWO_RANKS = (*LAUNCH, "--cpu", "--num_processes", "2")


def ended(folder: Path, source: str, *start: str, **env: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(source)
    return subprocess.run(
        [*start, "script.py"],
        cwd=folder,
        env=clean_env(**env),
        capture_output=True,
        text=True,
        timeout=90,
    )


@pytest.mark.parametrize("start", [TWO_RANKS, (sys.executable,)], ids=["launched", "plain"])
def test_an_error_of_ours_ends_a_script_with_the_persons_frames_only(
    tmp_path: Path, start: tuple[str, ...]
) -> None:
    source = WRONG_CLASS if start is TWO_RANKS else WRONG_WORD
    done = ended(tmp_path, source, *start)
    assert done.returncode == 1
    frames = [line for line in done.stderr.splitlines() if line.startswith("  File ")]
    assert frames and all("script.py" in line for line in frames), done.stderr
    assert "errors.ConfigError: " in done.stderr and "  do:  " in done.stderr
    assert done.stderr.count("Traceback") == 1


def test_our_frames_are_shown_on_demand(tmp_path: Path) -> None:
    done = ended(tmp_path, WRONG_WORD, sys.executable, NOTEBOOK_ACCEL_TRACE="1")
    assert done.returncode == 1 and "accelerator.py" in done.stderr


def test_another_error_keeps_all_of_its_frames(tmp_path: Path) -> None:
    source = "from notebook_accel import Accelerator\nAccelerator(cpu=True).prepare(1).absent\n"
    done = ended(tmp_path, source, sys.executable)
    assert done.returncode == 1 and "AttributeError: 'int' object" in done.stderr

"""A loop in a script: a line on stderr at its end, and not a word on its stdout."""

from __future__ import annotations

import gc
import io
import os
import re
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from tqdm import tqdm

from notebook_accel import Accelerator
from notebook_accel.events.history import History
from notebook_accel.events.model import Metrics, Progress
from notebook_accel.ui import in_script
from notebook_accel.ui.live import LiveView
from notebook_accel.ui.pace import Pace
from notebook_accel.ui.panel import Panel
from notebook_accel.ui.pens import Pen
from notebook_accel.ui.screens import SharedScreen
from tests.support.kernels import ROOT

TRAIN = """
import json, sys, torch
from notebook_accel import Accelerator

def main(steps, error=None):
    accelerator = Accelerator(cpu=True)
    w = torch.nn.Parameter(torch.ones(1))
    optimizer = accelerator.prepare(torch.optim.SGD([w], lr=0.1))
    for _ in range(steps):
        accelerator.backward((w * w).sum())
        optimizer.step()
        optimizer.zero_grad()
    accelerator.log({"accuracy": 0.5})
    if error:
        raise error
    return w.item()
"""
SUMMARY = r"train\.py, {}on cpu: {}{} steps? in [\d.]+ m?s · loss 1\.000 -> 0\.\d+\n"


def run(folder: Path, call: str, *launcher: str, **env: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(f"{TRAIN}\nif __name__ == '__main__':\n    {call}\n")
    return subprocess.run(
        [sys.executable, *launcher, str(folder / "train.py")],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **env},
    )


def test_a_script_ends_with_a_line_for_each_training_and_keeps_its_stdout(tmp_path: Path) -> None:
    done = run(tmp_path, "print(json.dumps([main(3), main(1)]))")
    assert done.stdout.startswith("[0.5") and done.stdout.count("\n") == 1
    wanted = SUMMARY.format("", "", 3) + r"train\.py, run 2, on cpu: 1 step in .*\n"
    assert re.fullmatch(wanted, done.stderr), done.stderr


def test_a_script_that_fails_says_how_far_it_came(tmp_path: Path) -> None:
    done = run(tmp_path, "main(3, ValueError('x'))")
    assert "ValueError: x\n" in done.stderr and done.returncode == 1
    last = done.stderr.splitlines(keepends=True)[-1]
    assert re.fullmatch(SUMMARY.format("", "raised ValueError · ", 3), last)


def test_a_script_that_never_trains_says_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, "print(main(0))")
    assert (done.stdout, done.stderr) == ("1.0\n", "")


def test_a_script_can_be_told_to_be_quiet(tmp_path: Path) -> None:
    done = run(tmp_path, "print(main(2) > 0)", NOTEBOOK_ACCEL_UI="off")
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(("-m", "notebook_accel", "launch", "--num_processes", "2", "--cpu")),
        pytest.param(
            ("-m", "torch.distributed.run", "--nproc-per-node", "2"), marks=pytest.mark.slow
        ),
        pytest.param(
            ("-m", "notebook_accel", "launch", "-q", "--num_processes", "2", "--cpu"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_of_several_ranks_the_first_tells_of_itself(tmp_path: Path, launcher) -> None:
    done = run(tmp_path, "main(3)", *launcher)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines(keepends=True) if " steps in " in line]
    assert len(lines) == ("-q" not in launcher)
    assert all(re.fullmatch(SUMMARY.format("rank 0 of 2, ", "", 3), line) for line in lines)


def test_a_training_that_is_over_keeps_no_model(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "__stderr__", sys.stderr)
    accelerator = Accelerator(cpu=True)
    assert isinstance(accelerator._live._emitter, Pen)
    model = torch.nn.Linear(2, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        accelerator.backward(model(torch.ones(1, 2)).square().sum())
        optimizer.step()
    held = weakref.ref(model)
    del accelerator, model, optimizer
    gc.collect()
    assert held() is None
    in_script._script.end()
    assert ": 3 steps in " in capsys.readouterr().err


# ── a terminal to which the script writes as well ─────────────────────────────────────────────


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Loop:
    """A loop whose line is rewritten on the terminal that this process prints to."""

    def __init__(self, monkeypatch, terminal=None):
        self.terminal = terminal or Terminal()
        monkeypatch.setattr(sys, "stdout", self.terminal)
        monkeypatch.setattr(sys, "stderr", self.terminal)
        monkeypatch.setattr(SharedScreen, "AFTER_OUTPUT_S", 0.0)
        monkeypatch.setattr(Pace, "run", lambda pace, refresh: refresh())
        self.history = History()
        panel = Panel(self.history, "train.py", 1)
        self.view = LiveView(panel, SharedScreen(self.terminal, rewrites=True))

    @property
    def text(self):
        return self.terminal.getvalue()

    def step(self, step, loss=None):
        for event in (Metrics(0, [("loss", step, loss or 1 / step)]), Progress(0, step)):
            self.history.handle(event)
            self.view.handle(event)
        self.view.tick()

    def close(self):
        self.history.close()
        self.view.close()


LINE = "\r\x1b[Kepoch 0 · batch 0 · step {} · loss {}"


def test_what_a_script_prints_is_on_lines_of_its_own(monkeypatch):
    loop = Loop(monkeypatch)
    loop.step(1)
    print("hello")
    assert loop.text.endswith("loss 1.000\r\x1b[Khello\n")
    loop.step(2)
    assert LINE.format(2, "0.500") in loop.text
    loop.close()
    assert loop.text.splitlines()[-1].endswith("loss 1.000 -> 0.500")
    before = loop.text
    print("after")
    assert loop.text == before + "after\n", "nobody listens any more"
    assert "write" not in vars(sys.stdout)


def test_an_open_bar_of_a_script_is_not_overwritten(monkeypatch):
    loop = Loop(monkeypatch)
    sys.stderr.write("\r 10%|█   |")
    loop.step(1)
    assert loop.text == "\r 10%|█   |"
    sys.stderr.write("\r100%|████|\n")
    loop.step(2)
    assert LINE.format(2, "0.500") in loop.text
    sys.stderr.write("\r 10%|█   |")
    loop.step(3, float("nan"))
    assert "|\ntrain.py: ▲ " in loop.text, "an alarm cannot wait"


def test_a_bar_that_was_there_before_the_loop_is_not_overwritten(monkeypatch):
    terminal = Terminal()
    bar = tqdm(total=2, file=terminal)  # tqdm holds on to how it writes from here on
    loop = Loop(monkeypatch, terminal)
    loop.step(1)
    bar.update()
    loop.step(2)
    assert "loss" not in loop.text
    loop.step(3, float("nan"))
    assert "\ntrain.py: ▲ " in loop.text, "an alarm cannot wait"
    bar.close()
    loop.step(4)
    assert LINE.format(4, "0.250") in loop.text


def test_who_listens_to_a_stream_in_their_turn_is_left_alone(monkeypatch):
    loop = Loop(monkeypatch)
    held = sys.stdout.write
    loop.step(1)
    sys.stdout.write = lambda text: held(text)
    loop.close()
    assert "write" in vars(sys.stdout), "what others have put there stays"

"""A function of a notebook as a script: the same losses, to the last bit, without the notebook."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kernels import ROOT, Kernel

CELLS = [
    """
import math
import torch.nn.functional as F
from dataclasses import dataclass
from functools import lru_cache, wraps
from notebook_accel import Accelerator, set_seed

WIDTH = 8

@dataclass
class Config:
    lr: float = 0.1
    steps: int = 12

    @property
    def rows(self):
        return self.steps * 8

config = Config(lr=0.05)
layers = [WIDTH, 16, 1]
dtype = torch.float32
""",
    """
def told(function):
    @wraps(function)
    def inner(*args, **kwargs):
        losses = function(*args, **kwargs)
        return {"losses": losses, "rank": rank_here()}
    return inner

def rank_here():
    return int(os.environ.get("RANK", 0))

class Base(nn.Module):
    scale = WIDTH / 8

class Net(Base):
    def __init__(self, sizes):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.tanh(layer(x))
        return self.layers[-1](x) * self.scale

@lru_cache
def width():
    return WIDTH
""",
    """
def loader_of(config):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(config.rows, width(), generator=generator, dtype=dtype)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True).sin())
    return DataLoader(data, batch_size=4, shuffle=True)

@told
def train(config, epochs=1, how=math.inf):
    accelerator = Accelerator(cpu=True)
    net = Net(layers)
    optimizer = torch.optim.SGD(net.parameters(), lr=config.lr)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader_of(config))
    losses = []
    for _ in range(epochs):
        for x, y in loader:
            loss = F.mse_loss(net(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach(), "mean").item())
    return losses

train_it = train  # another name for it
torch.manual_seed(5)
""",
]


def exported(kernel: Kernel, folder: Path, num_processes: int) -> tuple[Path, str]:
    """Launch in a notebook, export; give the script and what rank 0 said of its losses."""
    for cell in CELLS:
        reply = kernel.run(cell)
        assert not reply.error, reply.traceback
    path = folder / "train.py"
    reply = kernel.run(
        f"run = notebook_launcher(train_it, (config,), {num_processes}, kwargs={{'epochs': 2}}, "
        f"device='cpu')\nrun.export_script({str(path)!r})\nprint(run[0])"
    )
    assert not reply.error, reply.traceback
    return path, losses(reply.out)


def losses(text: str) -> str:
    """Give what the function returned on rank 0, to the last bit, which is all that is printed."""
    lines = [line for line in text.splitlines() if "losses" in line]
    assert len(lines) == 1 and lines[0].endswith("'rank': 0}"), text
    return lines[0]


def run(*words: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(" steps in ") == 1, done.stderr
    return losses(done.stdout)


def test_one_process_gives_the_same_losses_as_a_plain_script(
    kernel: Kernel, tmp_path: Path
) -> None:
    path, wanted = exported(kernel, tmp_path, 1)
    text = path.read_text()
    assert "torch.manual_seed(5)" in text and "def told" in text and "import subprocess" not in text
    assert wanted.count(",") == 48 and run(path) == wanted


@pytest.mark.slow
def test_two_processes_give_the_same_losses_under_every_launcher(
    kernel: Kernel, tmp_path: Path
) -> None:
    path, wanted = exported(kernel, tmp_path, 2)
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    assert run(*torchrun, path) == wanted
    ours = ("-m", "notebook_accel", "launch", "--num_processes", "2", "--cpu")
    assert run(*ours, path) == wanted


def test_what_has_no_source_is_refused_by_name_in_the_cell(kernel: Kernel, tmp_path: Path) -> None:
    reply = kernel.run(
        "data = torch.randn(5, 4)\nmodel = nn.Linear(4, 1)\n"
        "def main():\n    return len(data), model.in_features\n"
        f"run = notebook_launcher(main, num_processes=1)\nrun.export_script('{tmp_path}/main.py')"
    )
    assert reply.error == "ConfigError"
    assert "data: a Tensor of shape (5, 4) made in the notebook, used by main" in reply.traceback
    assert "model: a Linear made in the notebook, used by main" in reply.traceback
    assert not (tmp_path / "main.py").exists()


def test_magics_in_the_function_are_refused(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run("def main():\n    !true\n")
    reply = kernel.run(
        f"run = notebook_launcher(main, num_processes=1)\nrun.export_script('{tmp_path}/main.py')"
    )
    assert "get_ipython: a magic of the notebook (% or !), used by main" in reply.traceback


def test_a_script_has_what_its_run_had_and_not_what_later_cells_set(
    kernel: Kernel, tmp_path: Path
) -> None:
    kernel.run("LR = 0.01\ndef scaled(x):\n    return x * LR\n")
    kernel.run("def main():\n    return scaled(1)\nrun = notebook_launcher(main, num_processes=1)")
    kernel.run("LR = 5.0\ndef scaled(x):\n    return 'later'\n")
    path = tmp_path / "main.py"
    assert not kernel.run(f"run.export_script({str(path)!r})").error
    text = path.read_text()
    assert "LR = 0.01" in text and "return x * LR" in text and "later" not in text

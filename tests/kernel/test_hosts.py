"""What a run says where no page listens: words and a picture that stays, and never a hang."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.support.kernels import ROOT

MAIN = """
import time
import torch
from notebook_accel import Accelerator, notebook_launcher

def main(num_steps):
    accelerator = Accelerator()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(torch.randn(2 * num_steps, 4))
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x in loader:
        accelerator.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01)
    print("said by every rank")
    return "finished"
"""
RUN = "run = notebook_launcher(main, (60,), num_processes=2, device='cpu')\nprint(run[0])\n"
SCRIPT = f"{MAIN}\nif __name__ == '__main__':\n    " + RUN.replace("\n", "\n    ")


def called(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path, "IPYTHONDIR": str(cwd / "ipython")}
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def notebook_in(folder: Path) -> Path:
    cells = [nbformat.v4.new_code_cell(source.strip()) for source in (MAIN, RUN, "main(40)")]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path = folder / "run.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)
    return path


def check_notebook(path: Path) -> None:
    """The launch's cell and the plain loop's cell end with words and one picture each."""
    notebook = nbformat.read(path, as_version=4)
    for cell, steps in zip(notebook.cells[1:], ("60 steps in ", "80 steps in "), strict=False):
        shown = [one.data for one in cell.outputs if one.output_type == "display_data"]
        (picture,) = [data for data in shown if "image/png" in data]
        assert "loss" in picture["text/plain"]
        assert any(steps in data["text/plain"] for data in shown)
        assert not any("widget" in kind for data in shown for kind in data)
    text = "".join(one.text for one in notebook.cells[1].outputs if one.output_type == "stream")
    assert "said by every rank" in text and "finished" in text
    assert "widgets" not in notebook.metadata
    assert len(json.dumps(notebook)) < 300_000


def test_a_script_ends_with_words_on_stderr(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = called(sys.executable, "train.py", cwd=tmp_path)
    assert "[0,1] said by every rank\n" in done.stdout and done.stdout.endswith("finished\n")
    assert "2 CPU processes, fork: 60 steps in " in done.stderr


def test_plain_ipython_shows_words(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = called(sys.executable, "-m", "IPython", "--no-banner", "train.py", cwd=tmp_path)
    assert "said by every rank" in done.stdout and "finished" in done.stdout
    assert "60 steps in " in done.stdout + done.stderr
    assert "display_data" not in done.stdout and "<div" not in done.stdout


@pytest.mark.slow
def test_nbconvert_leaves_the_picture(tmp_path):
    path = notebook_in(tmp_path)
    command = ("nbconvert", "--to", "notebook", "--execute", "--inplace", path.name)
    called(sys.executable, "-m", "jupyter", *command, cwd=tmp_path)
    check_notebook(path)


@pytest.mark.slow
def test_jupyter_execute_leaves_the_picture(tmp_path):
    path = notebook_in(tmp_path)
    called(sys.executable, "-m", "jupyter", "execute", "--inplace", path.name, cwd=tmp_path)
    check_notebook(path)


@pytest.mark.slow
def test_papermill_leaves_the_picture(tmp_path):
    if importlib.util.find_spec("papermill") is None:
        pytest.skip("papermill is not installed here")
    path = notebook_in(tmp_path)
    called(sys.executable, "-m", "papermill", path.name, "out.ipynb", cwd=tmp_path)
    check_notebook(tmp_path / "out.ipynb")

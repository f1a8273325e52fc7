"""``make demo``, with smaller notebooks in place of the quickstart."""

from __future__ import annotations

import base64
import importlib.util
from pathlib import Path

import nbformat
import pytest

DEMO = Path(__file__).resolve().parents[2] / "notebooks" / "run_demo.py"
PICTURE = base64.b64encode(b"\x89PNG picture").decode()
LAUNCH = f"""
from IPython.display import display
line = display({{"text/html": "<b>0</b>", "text/plain": "step 0"}}, raw=True, display_id=True)
line.update({{"text/html": "<b>1</b>", "text/plain": "step 1"}}, raw=True)
def notebook_launcher(main):
    display({{"image/png": "{PICTURE}"}}, raw=True)
accuracy = ACCURACY
notebook_launcher(main=None)  # notebook_launcher(main
print("trained")
"""


@pytest.fixture
def run_demo(tmp_path):
    spec = importlib.util.spec_from_file_location("run_demo", DEMO)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.HERE = tmp_path / "notebooks"
    module.NOTEBOOK = module.HERE / "lesson.ipynb"
    module.OUT = tmp_path / "out"
    module.HERE.mkdir()

    def run(*sources):
        cells = [nbformat.v4.new_markdown_cell("# A lesson\n\ntext")]
        cells += [nbformat.v4.new_code_cell(source) for source in sources]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), module.NOTEBOOK)
        module.demo()

    run.failure = module.DemoFailed
    run.out = module.OUT
    return run


def test_the_demo_shows_the_output_and_says_where_everything_lies(run_demo, capsys):
    run_demo(LAUNCH.replace("ACCURACY", "0.98"))
    said = capsys.readouterr().out
    assert said.index("A lesson") < said.index("  step 1") < said.index("trained")
    assert "accuracy   0.9800\n" in said
    assert "wall time  " in said
    assert (run_demo.out / "loss.png").read_bytes() == b"\x89PNG picture"
    executed = nbformat.read(run_demo.out / "lesson.ipynb", as_version=4)
    assert len(executed.cells) == 2, "the question to the kernel is not part of the notebook"
    assert executed.cells[1].outputs


def test_the_demo_fails_when_the_network_learned_too_little(run_demo):
    with pytest.raises(run_demo.failure, match=r"accuracy 0\.9000 is below 0\.97"):
        run_demo(LAUNCH.replace("ACCURACY", "0.9"))


def test_the_demo_fails_when_a_cell_raises_and_keeps_the_notebook(run_demo):
    with pytest.raises(run_demo.failure, match="a cell raised ValueError: broken"):
        run_demo("raise ValueError('broken')")
    assert (run_demo.out / "lesson.ipynb").exists()


def test_the_demo_fails_when_the_kernel_dies(run_demo):
    with pytest.raises(run_demo.failure, match="DeadKernelError"):
        run_demo("import os; os._exit(1)")


def test_the_demo_fails_when_there_is_no_picture(run_demo):
    with pytest.raises(run_demo.failure, match="no picture"):
        run_demo("accuracy = 1.0")

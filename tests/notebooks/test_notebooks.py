"""Every notebook: runs top to bottom, is stored without outputs, equals its text pair."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_there_are_notebooks():
    assert [path.name for path in NOTEBOOKS][:1] == ["01_quickstart.ipynb"]


@every_notebook
@pytest.mark.timeout(240)
def test_it_runs_top_to_bottom(path):
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    ran = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in ran)


@every_notebook
def test_it_is_stored_without_outputs(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
        assert not set(cell.metadata) - {"tags", "lines_to_next_cell"}


@every_notebook
def test_it_says_the_same_as_its_text_pair(path):
    stored = nbformat.read(path, as_version=4)
    pair = jupytext.read(path.with_suffix(".py"))
    assert [(c.cell_type, c.source) for c in stored.cells] == [
        (c.cell_type, c.source) for c in pair.cells
    ], f"run: jupytext --sync {path.relative_to(ROOT)}"


@every_notebook
def test_its_code_is_clean(path):
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, str(path)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@every_notebook
def test_its_cells_are_short_enough_to_teach_one_idea(path):
    for cell in nbformat.read(path, as_version=4).cells:
        assert len(cell.source.splitlines()) <= 40, cell.source[:80]

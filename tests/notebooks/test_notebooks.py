"""Every notebook: runs top to bottom in time, is stored clean, teaches in the shape of a lesson."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))
QUICKSTART = ROOT / "notebooks" / "1_beginner" / "01_quickstart.ipynb"
# The whole notebook on two idle cores takes at most a minute or so; these may be busy.
LIMIT_S = 300

every_notebook = pytest.mark.parametrize(
    "path", NOTEBOOKS, ids=lambda path: f"{path.parent.name}/{path.stem}"
)


def markdown_of(path: Path) -> list[str]:
    cells = nbformat.read(path, as_version=4).cells
    return [cell.source for cell in cells if cell.cell_type == "markdown"]


def runs_top_to_bottom(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=LIMIT_S, kernel_name="python3", resources=resources).execute()
    ran = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in ran)
    shown = [output.get("data", {}) for cell in ran for output in cell.outputs]
    pictures = [one for one in shown if "image/png" in one or "<table" in one.get("text/html", "")]
    assert pictures, "a readable picture stays"


def test_there_are_notebooks():
    assert QUICKSTART in NOTEBOOKS


@pytest.mark.timeout(LIMIT_S)
def test_the_quickstart_runs_top_to_bottom():
    runs_top_to_bottom(QUICKSTART)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize(
    "path",
    [path for path in NOTEBOOKS if path != QUICKSTART],
    ids=lambda path: f"{path.parent.name}/{path.stem}",
)
def test_it_runs_top_to_bottom(path):
    runs_top_to_bottom(path)


@every_notebook
def test_it_is_stored_without_outputs(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
        assert not set(cell.metadata) - {"tags", "jupyter", "lines_to_next_cell"}


@every_notebook
def test_it_says_the_same_as_its_text_pair(path):
    stored = nbformat.read(path, as_version=4)
    pair = jupytext.read(path.with_suffix(".py"))
    assert [(c.cell_type, c.source, c.metadata.get("tags")) for c in stored.cells] == [
        (c.cell_type, c.source, c.metadata.get("tags")) for c in pair.cells
    ], f"run: jupytext --to ipynb --update {path.with_suffix('.py').relative_to(ROOT)}"


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=["check", "format"])
def test_their_code_is_clean(command):
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command, str(ROOT / "notebooks")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@every_notebook
def test_its_cells_are_short_enough_to_teach_one_idea(path):
    for cell in nbformat.read(path, as_version=4).cells:
        assert len(cell.source.splitlines()) <= 40, cell.source[:80]


@every_notebook
def test_it_begins_with_a_title_and_ends_in_what_next(path):
    markdown = markdown_of(path)
    assert re.match(r"# \S", markdown[0])
    headings = re.findall(r"^#+ (.+)$", "\n".join(markdown), re.MULTILINE)
    assert headings[-1] == "What next"


@every_notebook
def test_it_shows_the_learner_what_holds(path):
    cells = nbformat.read(path, as_version=4).cells
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    assert len(re.findall(r"^ *assert ", code, re.MULTILINE)) >= 2


@every_notebook
def test_its_solutions_are_folded_and_checked(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if "solution" in cell.metadata.get("tags", []):
            assert cell.metadata.get("jupyter", {}).get("source_hidden")
            assert "assert " in cell.source, cell.source[:80]


@every_notebook
def test_its_links_lead_somewhere(path):
    links = re.findall(r"\]\(([^)#\s]+)", "\n".join(markdown_of(path)))
    missing = [one for one in links if "://" not in one and not (path.parent / one).exists()]
    assert missing == []

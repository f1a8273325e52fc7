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
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]_*/*.ipynb"))
CELLS = {path: nbformat.read(path, as_version=4).cells for path in NOTEBOOKS}
QUICKSTART = ROOT / "notebooks" / "1_beginner" / "01_quickstart.ipynb"
# The whole notebook on two idle cores takes at most a minute or so; these may be busy.
LIMIT_S = 300


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def sources_of(path: Path, kind: str) -> list[str]:
    return [cell.source for cell in CELLS[path] if cell.cell_type == kind]


def runs_top_to_bottom(path: Path) -> None:
    runs(nbformat.read(path, as_version=4), path)


def runs(notebook, path: Path) -> None:
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=LIMIT_S, kernel_name="python3", resources=resources).execute()
    ran = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in ran)
    shown = [output.get("data", {}) for cell in ran for output in cell.outputs]
    pictures = [one for one in shown if "image/png" in one or "<table" in one.get("text/html", "")]
    assert pictures, "a readable picture stays"


@pytest.mark.timeout(LIMIT_S)
def test_the_quickstart_runs_top_to_bottom():
    runs_top_to_bottom(QUICKSTART)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if path != QUICKSTART], ids=name)
def test_it_runs_top_to_bottom(path):
    runs_top_to_bottom(path)


# A clock on a machine so busy that how long a thing takes says nothing of the thing.
BUSY_CLOCK = """
import itertools, random
ticks = itertools.count()
def busy_clock():
    return next(ticks) + random.random()
"""


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize(
    "path",
    [path for path in NOTEBOOKS if "time.perf_counter()" in "".join(sources_of(path, "code"))],
    ids=name,
)
def test_it_runs_on_a_machine_whose_times_are_noise(path):
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace("time.perf_counter()", "busy_clock()")
    notebook.cells.insert(0, nbformat.v4.new_code_cell(BUSY_CLOCK))
    runs(notebook, path)


def test_they_are_stored_without_outputs():
    for path, cells in CELLS.items():
        for cell in cells:
            assert not cell.get("outputs"), name(path)
            assert cell.get("execution_count") is None, name(path)
            extra = set(cell.metadata) - {"tags", "jupyter", "lines_to_next_cell"}
            assert not extra, (name(path), extra)


def test_they_say_the_same_as_their_text_pairs():
    stale = [
        str(path.with_suffix(".py").relative_to(ROOT))
        for path, cells in CELLS.items()
        if [told(cell) for cell in cells]
        != [told(cell) for cell in jupytext.read(path.with_suffix(".py")).cells]
    ]
    assert stale == [], f"run: jupytext --to ipynb --update {' '.join(stale)}"


def told(cell):
    return cell.cell_type, cell.source, cell.metadata.get("tags")


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=["check", "format"])
def test_their_code_is_clean(command):
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command, str(ROOT / "notebooks")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_their_cells_are_short_enough_to_teach_one_idea():
    long = [
        (name(path), cell.source[:60])
        for path, cells in CELLS.items()
        for cell in cells
        if len(cell.source.splitlines()) > 40
    ]
    assert long == []


def test_each_begins_with_a_title_and_ends_in_what_next():
    for path in NOTEBOOKS:
        markdown = sources_of(path, "markdown")
        assert re.match(r"# \S", markdown[0]), name(path)
        headings = re.findall(r"^#+ (.+)$", "\n".join(markdown), re.MULTILINE)
        assert headings[-1] == "What next", name(path)


def test_each_shows_the_learner_what_holds():
    for path in NOTEBOOKS:
        code = "\n".join(sources_of(path, "code"))
        assert len(re.findall(r"^ *assert ", code, re.MULTILINE)) >= 2, name(path)


def test_solutions_are_folded_and_checked():
    solutions = [
        (path, cell)
        for path, cells in CELLS.items()
        for cell in cells
        if "solution" in cell.metadata.get("tags", [])
    ]
    assert len(solutions) >= 14
    for path, cell in solutions:
        assert cell.metadata.get("jupyter", {}).get("source_hidden"), name(path)
        assert "assert " in cell.source, (name(path), cell.source[:60])


def test_their_links_lead_somewhere():
    missing = [
        (name(path), link)
        for path in NOTEBOOKS
        for link in re.findall(r"\]\(([^)#\s]+)", "\n".join(sources_of(path, "markdown")))
        if "://" not in link and not (path.parent / link).exists()
    ]
    assert missing == []


def test_they_need_no_name_that_only_a_newer_torch_has():
    newer = re.compile(r"\bdist\.(?:all_gather_single|reduce_scatter_single)\b|ReduceOp\.AVG")
    for path in NOTEBOOKS:
        assert not newer.findall("\n".join(sources_of(path, "code"))), name(path)


def test_what_a_learner_writes_is_checked():
    for path, cells in CELLS.items():
        code = [
            cell.source
            for cell in cells
            if cell.cell_type == "code" and "solution" not in cell.metadata.get("tags", [])
        ]
        for number, source in enumerate(code):
            for function in re.findall(
                r"^def (\w+)\([^\n]*\n(?:    .*\n)?    \.\.\.$", source, re.M
            ):
                behind = "\n".join(code[number + 1 :])
                assert re.search(rf"\b{function}\b", behind), (name(path), function)


def test_a_guess_is_answered_alike_in_all_of_them():
    answers = {
        found[0]
        for path in NOTEBOOKS
        for source in sources_of(path, "code")
        if (found := re.search(r"^def compare\(.*?(?=^\S)", source + "\nend", re.M | re.S))
    }
    assert len({answer.rstrip() for answer in answers}) == 1

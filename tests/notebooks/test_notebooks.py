"""Every notebook: runs top to bottom in time, is stored clean, teaches in the shape of a lesson."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from itertools import pairwise
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
    assert unwanted_warnings(notebook) == []
    said = "".join(text_of(cell, "stdout") for cell in ran)
    assert said.count("Not answered yet.") >= len(exercises_of(path)), "answers are still to come"


# Warnings that a lesson shows on purpose, and explains.
SHOWN = re.compile(r"GuardRail: |is incomplete \(a save was killed\): an earlier one counts")


def unwanted_warnings(notebook) -> list[str]:
    lines = "".join(text_of(cell, "stderr") for cell in notebook.cells).splitlines()
    return [line for line in lines if "Warning" in line and not SHOWN.search(line)]


def text_of(cell, stream: str) -> str:
    outputs = cell.get("outputs", [])
    return "".join(one.text for one in outputs if one.get("name") == stream)


def exercises_of(path: Path) -> list[list]:
    """The cells of each numbered exercise: its task, the place for the answer, the solution."""
    found: list[list] = []
    begun = False
    for cell in CELLS[path]:
        text = cell.source if cell.cell_type == "markdown" else ""
        begun = begun or bool(re.search(r"^## Exercises$", text, re.M))
        if begun and re.search(r"^\*\*\d+\.\*\* ", text, re.M):
            found.append([])
        if found:
            found[-1].append(cell)
    return found


def is_solution(cell) -> bool:
    return "solution" in cell.metadata.get("tags", [])


def calls_in(cells, name: str) -> list[ast.Call]:
    """The calls of functions whose names match, in code cells."""
    return [
        node
        for cell in cells
        if cell.cell_type == "code"
        for node in ast.walk(ast.parse(cell.source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and re.fullmatch(name, node.func.id)
    ]


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


def test_each_has_a_prediction_an_exercise_and_a_solution_to_each_exercise():
    for path, cells in CELLS.items():
        exercises = exercises_of(path)
        assert exercises, name(path)
        before = cells[: cells.index(exercises[0][0])]
        assert calls_in(before, "compare"), (name(path), "a prediction")
        for number, exercise in enumerate(exercises, start=1):
            mine = [cell for cell in exercise if not is_solution(cell)]
            assert calls_in(mine, r"check(_\w+)?"), (name(path), number, "an answer is checked")
            assert not calls_in(exercise, "compare"), (name(path), number, "tells the truth early")
            assert any(map(is_solution, exercise)), (name(path), number, "a solution")


def test_solutions_are_folded_and_can_fail():
    for path, cells in CELLS.items():
        for cell in filter(is_solution, cells):
            folded = cell.metadata.get("jupyter", {})
            assert folded.get("source_hidden") and folded.get("outputs_hidden"), name(path)
            tree = ast.walk(ast.parse(cell.source))
            tests = [node.test for node in tree if isinstance(node, ast.Assert)]
            assert tests, (name(path), cell.source[:60])
            for test in tests:
                assert not compares_with_itself(test), (name(path), ast.unparse(test))


def compares_with_itself(test: ast.expr) -> bool:
    for node in ast.walk(test):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("compare", "check"):
            return True  # the answer against what the same cell says that it is
        else:
            continue
        words = [ast.dump(side) for side in sides]
        if any(one == other for one, other in pairwise(words)):
            return True
    return False


@pytest.mark.parametrize(
    "source", ["a == a", "f(a) == 1 == 1", "compare(2, 2).startswith('Yes')", "check(a, b)"]
)
def test_an_assert_that_cannot_fail_is_seen(source):
    assert compares_with_itself(ast.parse(source, mode="eval").body)


def test_an_assert_that_can_fail_is_no_such_one():
    assert not compares_with_itself(ast.parse("a == b == len(a)", mode="eval").body)


def test_a_warning_that_nobody_meant_to_show_is_seen():
    lines = "x.py:3: FutureWarning: old\n[0] x.py:4: GuardRail: shown\n"
    output = nbformat.v4.new_output("stream", name="stderr", text=lines)
    cell = nbformat.v4.new_code_cell("1", outputs=[output])
    found = unwanted_warnings(nbformat.v4.new_notebook(cells=[cell]))
    assert found == ["x.py:3: FutureWarning: old"]


def test_each_launch_says_where_it_runs():
    silent = []
    for path, cells in CELLS.items():
        named = dicts_in(cells)
        for call in calls_in(cells, "notebook_launcher"):
            said = {word.arg for word in call.keywords if word.arg}
            for word in call.keywords:
                if word.arg is None:  # **ALIKE
                    said |= named.get(ast.unparse(word.value), set())
            if not said & {"device", "config"}:
                silent.append((name(path), ast.unparse(call)))
    assert silent == [], "two processes on one GPU are an error: say device=, or config="


def dicts_in(cells) -> dict[str, set[str]]:
    """The keys of dictionaries that are written down under a name."""
    return {
        ast.unparse(node.targets[0]): {ast.literal_eval(key) for key in node.value.keys if key}
        for cell in cells
        if cell.cell_type == "code"
        for node in ast.walk(ast.parse(cell.source))
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Dict)
        and all(key is None or isinstance(key, ast.Constant) for key in node.value.keys)
    }


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


@pytest.mark.parametrize("function", ["compare", "check"])
def test_guesses_and_answers_are_answered_alike_in_all_of_them(function):
    answers = {
        name(path): found[0].rstrip()
        for path in NOTEBOOKS
        for source in sources_of(path, "code")
        if (found := re.search(rf"^def {function}\(.*?(?=^\S)", source + "\nend", re.M | re.S))
    }
    assert answers.keys() == {name(path) for path in NOTEBOOKS}
    assert len(set(answers.values())) == 1


def test_an_answer_is_told_right_or_wrong_and_never_given_away(capsys):
    source = next(cell.source for cell in CELLS[QUICKSTART] if "def check(" in cell.source)
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if getattr(node, "name", "") == "check"]
    found: dict = {}
    exec(compile(tree, "check", "exec"), found)
    for answer in (None, 41, 42):
        found["check"](answer, 42)
    none, wrong, right = capsys.readouterr().out.splitlines()
    assert none == "Not answered yet."
    assert wrong == "Not 41: try again, or open the solution."
    assert right == "Yes: 42."

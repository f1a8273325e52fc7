"""``notebooks/render.py``: a notebook becomes a page with its outputs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import nbformat
import pytest

RENDER = Path(__file__).resolve().parents[2] / "notebooks" / "render.py"


@pytest.fixture(scope="module")
def render():
    spec = importlib.util.spec_from_file_location("render", RENDER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code(source, outputs=(), **metadata):
    return nbformat.v4.new_code_cell(source, outputs=list(outputs), metadata=metadata)


def test_links_to_notebooks_become_links_to_pages(render):
    text = (
        "# Lesson\n\n[a](02_b.ipynb) [c](../2_d/01_e.ipynb#f) [g](https://h.org/i.ipynb)"
        " [j](../../docs/k/l.md)"
    )
    page = render.page_of(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)]))
    assert 'href="02_b.html"' in page
    assert 'href="../2_d/01_e.html#f"' in page
    assert 'href="https://h.org/i.ipynb"' in page
    assert 'href="../../k/l/index.html"' in page, "a page of the site beside the notebooks"
    assert "<title>Lesson</title>" in page


def test_a_solution_is_folded_and_other_cells_are_not(render):
    cells = [code("in_sight = 1"), code("in_hiding = 2", tags=["solution"])]
    page = render.page_of(nbformat.v4.new_notebook(cells=cells))
    fold = page.index('<details class="solution">')
    assert page.index("in_sight") < fold < page.index("in_hiding")
    assert page.count('<details class="solution">') == 1


def test_a_widget_shows_what_it_left_to_read(render):
    view = {"version_major": 2, "version_minor": 0, "model_id": "m"}
    data = {render._WIDGET: view, "text/plain": "what it left"}
    output = nbformat.v4.new_output("display_data", data=data)
    page = render.page_of(nbformat.v4.new_notebook(cells=[code("widget", [output])]))
    assert "what it left" in page
    assert "model_id" not in page


def test_a_notebook_is_executed_and_its_page_and_outputs_lie_beside_each_other(
    render, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(render, "HERE", tmp_path / "notebooks")
    level = tmp_path / "notebooks" / "1_first"
    level.mkdir(parents=True)
    cells = [nbformat.v4.new_markdown_cell("# Sums <1>"), code("print(6 * 7)")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), level / "01_sums.ipynb")
    (tmp_path / "notebooks" / "page").symlink_to(RENDER.parent / "page")
    render.main([str(tmp_path / "out")])
    assert "42" in (tmp_path / "out" / "1_first" / "01_sums.html").read_text()
    ran = nbformat.read(tmp_path / "out" / "1_first" / "01_sums.ipynb", as_version=4)
    assert ran.cells[1].outputs[0].text == "42\n"
    assert "01_sums.html" in capsys.readouterr().out


def test_formulas_are_drawn_without_a_script_and_code_is_left_alone(render):
    text = "Let $x_i$ cost `$5`.\n\n$$\\frac{a}{b}$$\n\n```bash\necho $HOME $PATH\n```"
    page = render.page_of(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)]))
    assert page.count("<math") == 2 and "<mfrac>" in page
    assert "$5" in page and "$HOME" in page and "$x_i$" not in page


def test_the_list_of_lessons_names_those_that_are_there(render, tmp_path):
    assert "<li>" not in render.index(tmp_path).read_text()
    for path in render.sources()[:2]:
        page = tmp_path / path.parent.name / path.name
        page.parent.mkdir(exist_ok=True)
        page.touch()
    shown = render.index(tmp_path).read_text()
    assert shown.count("<li>") == 2 and shown.count("<h2") == 1 and "Beginner" in shown
    assert 'href="1_beginner/01_quickstart.html"' in shown

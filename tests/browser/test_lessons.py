"""Lessons in JupyterLab, run by Run All: they go through, and what they show is there."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.timeout(300),
    pytest.mark.parametrize("theme", ["light"], indirect=True, scope="session"),
]

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


@pytest.fixture
def run_all(open_notebook, server, theme):
    """``run_all(lesson)``: the page after all cells ran, and the notebook as it was saved."""

    def run_all(lesson):
        path = NOTEBOOKS / lesson
        lab = open_notebook(path)
        lab.command("notebook:run-all-cells")
        lab.wait_done(lab.num_cells() - 1, timeout_s=240)
        lab.save()
        return lab, nbformat.read(server.root / path.name, as_version=4)

    return run_all


def outputs_of(notebook, text):
    """The outputs of the first cell that contains ``text``."""
    return next(cell.outputs for cell in notebook.cells if text in cell.source)


def test_an_error_is_shown_and_the_cells_after_it_run(run_all, shots):
    lab, saved = run_all("1_beginner/07_errors.ipynb")
    lab.show(lab.index_of("accelerator.gather(score)  # worker 1"))
    lab.page.wait_for_timeout(500)
    lab.shot(shots("lesson_errors"))
    shown = [one.ename for cell in saved.cells for one in cell.get("outputs", []) if "ename" in one]
    assert shown == ["ConfigError", "IndexError", "RuntimeError", "RanksStuck"]
    assert all(cell.execution_count for cell in saved.cells if cell.cell_type == "code")


def test_the_playground_has_its_controls_and_its_pictures(run_all, shots):
    lab, saved = run_all("1_beginner/08_talking.ipynb")
    lab.show(lab.index_of('playground.show("all_reduce"'))
    lab.page.get_by_role("button", name="Run it").wait_for()
    lab.shot(shots("lesson_playground"))
    assert "text/html" in outputs_of(saved, "playground.broadcast(")[-1].data
    kinds = outputs_of(saved, 'playground.show("all_reduce"')[-1].data
    assert "application/vnd.jupyter.widget-view+json" in kinds
    assert "rank 0" in kinds["text/plain"], "and a page without the widget shows this"
    assert lab.complaints == []


def test_solutions_are_folded_until_somebody_opens_them(open_notebook, theme, shots):
    lab = open_notebook(NOTEBOOKS / "1_beginner" / "03_one_loop.ipynb")
    index = lab.index_of("# Solution: click to open")
    lab.show(index)
    lab.page.wait_for_timeout(500)
    lab.shot(shots("lesson_solution"))
    assert lab.page.locator(".jp-Placeholder").count() >= 1

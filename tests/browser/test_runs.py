"""Runs on record as a person meets them in JupyterLab: after a reload, in a table, side by side."""

from __future__ import annotations

import nbformat
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(240)]

MAIN = """
import time
import torch
from notebook_accel import Accelerator, notebook_launcher, runs

def main(num_steps, lr=0.01):
    accelerator = Accelerator()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    loader = torch.utils.data.DataLoader(torch.randn(2 * num_steps, 4), batch_size=1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x in loader:
        optimizer.zero_grad()
        accelerator.backward((model(x) - x.sum()).square().mean())
        optimizer.step()
        time.sleep(0.01)
    return "finished"
"""


@pytest.fixture
def open_cells(open_notebook, tmp_path, request):
    """``open_cells(*sources)``: a notebook of these cells, after ``MAIN``, open in Lab."""

    def open_cells(*sources):
        cells = [nbformat.v4.new_code_cell(source.strip()) for source in (MAIN, *sources)]
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
        path = tmp_path / f"{request.function.__name__}.ipynb"
        nbformat.write(notebook, path)
        return open_notebook(path)

    return open_cells


def run_cell(lab, index):
    """Make a cell the active one and run it."""
    lab.show(index)
    lab.page.evaluate(
        "i => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = i; }", index
    )
    lab.command("notebook:run-cell")


def test_a_run_is_there_after_a_reload_and_stands_beside_others(open_cells, shots, tmp_path):
    lab = open_cells(
        f"import os\nos.environ['NOTEBOOK_ACCEL_RUNS'] = {str(tmp_path / 'runs')!r}\n"
        "for lr in (0.001, 0.02):\n"
        "    run = notebook_launcher(main, (400, lr), num_processes=2)",
        "runs.last().show()",
        "runs.list()",
        "runs.compare(*runs.list(2))",
    )
    run_cell(lab, 0)
    lab.wait_done(0)
    assert lab.outputs(0) == []
    run_cell(lab, 1)
    lab.page.wait_for_timeout(2500)
    assert not lab.is_done(1), lab.outputs(1)
    lab.save()
    lab.reload()
    for index in (2, 3, 4):
        run_cell(lab, index)
    lab.wait_done(4)
    lab.page.wait_for_timeout(500)
    for index in (2, 4):
        lab.show(index)
        lab.page.wait_for_timeout(300)
        assert lab.painted_images(index) == 1
    assert "loss" in lab.outputs(2)[0]["data"]["text/plain"]
    facts = lab.outputs(4)[0]["data"]["text/plain"]
    assert "loss of 2 runs" in facts and "lr=0.001" in facts and "lr=0.02" in facts
    lab.shot(shots("runs_compared"))
    lab.show(3)
    lab.page.wait_for_timeout(300)
    tables = lab.page.locator(".jp-OutputArea-output table", has_text="finished")
    table = tables.first.inner_text()  # the panel above has one of its ranks
    assert "main on 2 CPU processes" in table and table.count("finished") == 2
    lab.shot(shots("runs_listed"))
    assert lab.complaints == []

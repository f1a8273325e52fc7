"""A run drawn by pictures: while it goes on by itself, and when it is stopped."""

from __future__ import annotations

import time

import nbformat
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.timeout(200),
    pytest.mark.parametrize("theme", ["light"], indirect=True, scope="session"),
]

MAIN = """
import os, time
os.environ["NOTEBOOK_ACCEL_UI"] = "png"
import torch
from notebook_accel import Accelerator, notebook_launcher

def main(num_steps):
    accelerator = Accelerator()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(torch.randn(2 * num_steps, 4), batch_size=1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x in loader:
        optimizer.zero_grad()
        accelerator.backward(model(x).square().mean())
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


def pictures(lab, index):
    return [o for o in lab.outputs(index) if "image/png" in o.get("data", {})]


def wait_for_picture(lab, index, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not pictures(lab, index):
        assert time.monotonic() < deadline, f"no picture in {lab.outputs(index)}"
        time.sleep(0.1)


def test_a_run_in_the_background_draws_in_the_cell_that_started_it(open_cells):
    lab = open_cells(
        "handle = notebook_launcher(main, (600,), num_processes=2, block=False)",
        "print('the kernel is free')",
        "run = handle.wait(); print(run[0])",
    )
    lab.command("notebook:run-all-cells")
    wait_for_picture(lab, 1)
    assert not lab.is_done(3), "drawn while it went on"
    lab.wait_done(3)
    assert "finished" in lab.outputs(3)[0]["text"]
    assert len(pictures(lab, 1)) == 1
    assert "steps" in pictures(lab, 1)[0]["data"]["text/plain"]
    assert not pictures(lab, 2)


def test_the_stop_button_leaves_the_curve_so_far(open_cells, shots):
    lab = open_cells("run = notebook_launcher(main, (20_000,), num_processes=2)")
    lab.command("notebook:run-all-cells")
    wait_for_picture(lab, 1)
    lab.page.get_by_title("Interrupt the kernel").click()
    lab.wait_done(1)
    lab.page.wait_for_timeout(500)
    lab.shot(shots("stopped"))
    line = next(o["data"]["text/plain"] for o in lab.outputs(1) if "text/html" in o.get("data", {}))
    assert line.startswith("stopped · ")
    assert len(pictures(lab, 1)) == 1
    error = lab.outputs(1)[-1]
    assert error["ename"] == "RunInterrupted"

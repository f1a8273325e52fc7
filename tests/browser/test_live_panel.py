"""The panel of a run, as a person sees and uses it, in JupyterLab and Notebook 7."""

from __future__ import annotations

import time

import nbformat
import pytest
from hosts import NotebookPage
from lab_page import LabPage

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(240)]
light_only = pytest.mark.parametrize("theme", ["light"], indirect=True, scope="session")
both_pages = pytest.mark.parametrize("page", ["lab", "notebooks"])

MAIN = """
import math, time
import torch
from notebook_accel import Accelerator, notebook_launcher

def main(num_steps, break_at=None, slow=0):
    accelerator = Accelerator()
    torch.manual_seed(accelerator.process_index)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * num_steps)
    loader = torch.utils.data.DataLoader(torch.randn(8 * num_steps // 4, 4), batch_size=4)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    step = 0
    for epoch in range(4):
        for x in loader:
            step += 1
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean() + 0.2 * torch.rand(())
            if step == break_at:
                loss = loss * math.nan
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            time.sleep(0.01 + slow * accelerator.process_index)
            if step % 25 == 0:
                accelerator.log({"val_loss": 0.3 + 4 / step, "accuracy": 1 - 5 / (step + 5)})
                print("epoch", epoch, "is at step", step)
    return "finished"
"""
PANEL = ".nba"
PAGES = {"lab": LabPage, "notebooks": NotebookPage}


@pytest.fixture
def open_cells(open_notebook, tmp_path, request):
    """``open_cells(*sources)``: a notebook of these cells, after ``MAIN``, open in a page."""

    def open_cells(*sources, page="lab"):
        cells = [nbformat.v4.new_code_cell(source.strip()) for source in (MAIN, *sources)]
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
        path = tmp_path / f"{request.function.__name__}_{page}.ipynb"
        nbformat.write(notebook, path)
        return open_notebook(path, PAGES[page])

    return open_cells


def name_of(lab):
    return lab.address.partition("?")[0].rpartition("/")[2]


def state_of(lab):
    """What the panel in the page says: its numbers, its marks and its charts, as drawn."""
    return lab.page.evaluate(
        """() => {
            const panel = document.querySelector('.nba');
            if (!panel) return null;
            const text = (name) => panel.querySelector(name)?.textContent ?? '';
            return {
                title: text('.nba-title'), over: text('.nba-state'), hint: text('.nba-hint'),
                done: Number(panel.querySelector('.nba-bar').getAttribute('aria-valuenow')),
                meters: text('.nba-meters'), alarms: text('.nba-alarms'), ranks: text('table'),
                buttons: [...panel.querySelectorAll('button')].filter(one => !one.hidden)
                    .map(one => one.textContent),
                charts: [...panel.querySelectorAll('canvas')].map(one => ({
                    said: one.getAttribute('aria-label'),
                    ink: [...one.getContext('2d').getImageData(0, 0, one.width, one.height).data]
                        .filter((value, i) => i % 4 === 3 && value > 0).length,
                })),
            };
        }"""
    )


def wait_for(lab, what, timeout_s=60):
    """Wait until the panel's state satisfies ``what``; gives it."""
    deadline = time.monotonic() + timeout_s
    while True:
        state = state_of(lab)
        if state is not None and what(state):
            return state
        assert time.monotonic() < deadline, (state, lab.complaints, str(lab.outputs(1))[-2000:])
        time.sleep(0.1)


def picture(lab, index, timeout_s=30):
    """The one picture that a cell ends with, as it will be saved; waits for it."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = [o for o in lab.outputs(index) if "image/png" in o.get("data", {})]
        if found and lab.page.locator(PANEL).count() == 0:
            assert len(found) == 1
            return found[0]
        assert time.monotonic() < deadline, lab.outputs(index)
        time.sleep(0.1)


@both_pages
def test_the_bar_advances_the_curve_moves_and_a_picture_stays(open_cells, server, shots, page):
    lab = open_cells("run = notebook_launcher(main, (400,), num_processes=2)", page=page)
    lab.command("notebook:run-all-cells")
    first = wait_for(lab, lambda state: state["charts"] and state["done"] > 0)
    lab.show(1)
    later = wait_for(lab, lambda state: state["done"] > first["done"] + 20)
    assert later["charts"][0]["said"] != first["charts"][0]["said"], "the curve moved"
    assert later["charts"][0]["ink"] > 1000
    assert "the interrupt button" in later["hint"] and later["buttons"] == []
    full = wait_for(lab, lambda state: len(state["charts"]) == 3 and "CPU" in state["ranks"])
    for word in ("epoch", "loss", "accuracy", "lr", "samples/s"):
        assert word in full["meters"]
    assert "loss" in full["charts"][0]["said"] and "val_loss" in full["charts"][0]["said"]
    assert "rank 0" in full["ranks"] and "rank 1" in full["ranks"]
    lab.page.locator(f"{PANEL} canvas").first.hover(position={"x": 150, "y": 60})
    lab.page.wait_for_selector(".nba-tip:not([hidden])")
    assert "step " in lab.page.locator(".nba-tip:not([hidden])").first.inner_text()
    lab.shot(shots(f"panel_{page}"))

    lab.wait_done(1)
    picture(lab, 1)
    lab.show(1)
    lab.page.wait_for_timeout(300)
    lab.shot(shots(f"panel_{page}_over"))
    assert lab.painted_images(1) == 1
    lab.save()
    saved = nbformat.read(server.root / name_of(lab), as_version=4)
    (left,) = [o for o in saved.cells[1].outputs if "image/png" in o.get("data", {})]
    assert "val_loss" in left["data"]["text/plain"]
    assert "widget-view" not in str(saved.cells[1].outputs)
    assert lab.complaints == []


@light_only
@both_pages
def test_a_saved_notebook_shows_the_picture_with_a_new_kernel(open_cells, server, shots, page):
    lab = open_cells("run = notebook_launcher(main, (60,), num_processes=2)", page=page)
    lab.command("notebook:run-all-cells")
    lab.wait_done(1)
    lab.save()
    server.shut_down_kernel_of(name_of(lab))
    again = lab.reload()
    again.show(1)
    again.page.wait_for_timeout(500)
    assert again.painted_images(1) == 1
    assert "Error" not in again.page.locator(".jp-NotebookPanel").inner_text()
    again.shot(shots(f"reopened_{page}"))


@light_only
@both_pages
def test_the_stop_button_of_a_run_in_the_background(open_cells, shots, page):
    lab = open_cells(
        "run = notebook_launcher(main, (4000,), num_processes=2, block=False)",
        "print('the kernel is free')",
        page=page,
    )
    lab.command("notebook:run-all-cells")
    lab.wait_done(2)
    state = wait_for(lab, lambda state: state["charts"] and state["done"] > 0)
    assert state["buttons"] == ["Stop"] and state["hint"] == ""
    lab.show(1)
    stop = lab.page.locator(f"{PANEL} button", has_text="Stop")
    stop.focus()
    lab.page.keyboard.press("Enter")
    lab.page.wait_for_timeout(60)
    lab.shot(shots(f"stopping_{page}"))
    picture(lab, 1)
    line = lab.outputs(1)[1]["data"]["text/plain"]
    assert line.startswith("stopped · "), line


@light_only
def test_an_interrupt_ends_a_blocking_run_with_its_picture(open_cells, shots):
    lab = open_cells("run = notebook_launcher(main, (4000,), num_processes=2)")
    lab.command("notebook:run-all-cells")
    wait_for(lab, lambda state: state["charts"] and state["done"] > 0)
    lab.page.get_by_title("Interrupt the kernel").click()
    lab.wait_done(1)
    picture(lab, 1)
    lab.show(1)
    lab.shot(shots("panel_interrupted"))
    assert lab.outputs(1)[-1]["ename"] == "RunInterrupted"


@light_only
def test_a_page_that_is_reloaded_sees_a_background_run_go_on(open_cells, shots):
    lab = open_cells("run = notebook_launcher(main, (4000,), num_processes=2, block=False)")
    lab.command("notebook:run-all-cells")
    wait_for(lab, lambda state: state["charts"] and state["done"] > 0)
    lab.save()
    again = lab.reload()
    before = wait_for(again, lambda state: state["charts"] and state["done"] > 0)
    wait_for(again, lambda state: state["done"] > before["done"])
    again.show(1)
    again.page.wait_for_timeout(300)
    again.shot(shots("panel_reloaded"))
    again.page.locator(f"{PANEL} button", has_text="Stop").click()
    wait_for(again, lambda state: state["over"].startswith("stopped"), timeout_s=40)


@light_only
def test_a_loss_that_is_no_number_is_flagged_while_the_run_goes_on(open_cells, shots):
    cell = "run = notebook_launcher(main, (300, 60), num_processes=2)"
    lab = open_cells(cell)
    lab.command("notebook:run-all-cells")
    state = wait_for(lab, lambda state: state["alarms"])
    assert "loss is nan since step 60" in state["alarms"]
    assert not lab.is_done(1)
    lab.show(1)
    lab.page.wait_for_timeout(1500)
    lab.shot(shots("panel_nan"))
    lab.wait_done(1)
    line = lab.outputs(1)[1]["data"]["text/plain"]
    assert "▲ loss is nan since step 60" in line


@light_only
def test_the_rank_for_which_the_others_wait_is_marked(open_cells, shots):
    lab = open_cells("run = notebook_launcher(main, (500, None, 0.05), num_processes=2)")
    lab.command("notebook:run-all-cells")
    state = wait_for(lab, lambda state: "the others wait" in state["ranks"])
    assert state["ranks"].index("rank 1") < state["ranks"].index("the others wait")
    lab.show(1)
    lab.page.locator(f"{PANEL} details summary", has_text="output of each rank").click()
    lab.page.locator(f"{PANEL} details summary", has_text="rank 1").last.click()
    lab.page.wait_for_timeout(300)
    lab.page.locator(f"{PANEL} table").scroll_into_view_if_needed()
    lab.shot(shots("panel_straggler"))
    lab.page.get_by_title("Interrupt the kernel").click()
    lab.wait_done(1)


@light_only
def test_axes_smoothing_and_scale_are_set_by_keys_alone(open_cells, shots):
    lab = open_cells("run = notebook_launcher(main, (600,), num_processes=2)")
    lab.command("notebook:run-all-cells")
    wait_for(lab, lambda state: state["charts"] and state["done"] > 50)
    lab.show(1)
    lab.page.locator(f"{PANEL} select").focus()
    lab.page.keyboard.press("t")  # time
    lab.page.keyboard.press("Tab")
    for _ in range(20):
        lab.page.keyboard.press("ArrowRight")
    lab.page.keyboard.press("Tab")
    lab.page.keyboard.press("Space")
    wishes = lab.page.evaluate("() => JSON.parse(localStorage.getItem('notebook_accel.panel'))")
    assert wishes["axis"] == "time" and wishes["log"] and wishes["smooth"] > 0.3
    canvas = lab.page.locator(f"{PANEL} canvas").first
    canvas.focus()
    lab.page.keyboard.press("Home")
    lab.page.keyboard.press("ArrowRight")
    lab.page.wait_for_selector(".nba-tip:not([hidden])")
    lab.shot(shots("panel_keys"))
    lab.page.evaluate("() => localStorage.removeItem('notebook_accel.panel')")
    lab.page.get_by_title("Interrupt the kernel").click()
    lab.wait_done(1)


@light_only
def test_a_loop_without_a_launch_has_the_same_panel(open_cells, shots):
    lab = open_cells("main(300)")
    lab.command("notebook:run-all-cells")
    state = wait_for(lab, lambda state: state["charts"] and state["done"] > 0)
    assert state["title"] == "in this kernel, on cpu" and state["buttons"] == []
    lab.show(1)
    lab.page.wait_for_timeout(2500)
    lab.shot(shots("panel_in_cell"))
    lab.wait_done(1)
    picture(lab, 1)

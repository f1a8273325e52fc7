"""Pickers as a person uses them: pick two processes and bf16, launch, and that is what runs."""

from __future__ import annotations

import nbformat
import pytest
from hosts import NotebookPage, VoilaPage
from lab_page import LabPage

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(200)]

PREPARE = """
import ipywidgets
from notebook_accel import Accelerator, LaunchPicker, notebook_launcher

def settings():
    accelerator = Accelerator()
    return (accelerator.num_processes, accelerator.mixed_precision,
            accelerator.gradient_accumulation_steps)

picker = LaunchPicker(batch_size=32, device="cpu", model=1_000_000)
"""
LAUNCH = "run = notebook_launcher(settings, config=picker)\nprint(run.values)"
APPLICATION = """
answer = ipywidgets.Label("nothing has run")
train = ipywidgets.Button(description="Train")

def go(button):
    answer.value = f"trained: {notebook_launcher(settings, config=picker).values}"

train.on_click(go)
ipywidgets.VBox([picker.widget, train, answer])
"""
ADVISE = """
import torch
from notebook_accel import advise
with torch.device("meta"):
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(64)))
advise(model, torch.zeros(4096, 4096, device="meta"), "T4 x2")
"""
LIGHT = pytest.mark.parametrize("theme", ["light"], indirect=True, scope="session")
PAGES = {"lab": LabPage, "notebook": NotebookPage, "voila": VoilaPage}


@pytest.fixture
def open_in(server, browser, request):
    """``open_in(host, *sources)``: a notebook of these cells, open there."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    name = f"{request.function.__name__.removeprefix('test_')[:12]}.ipynb"

    def open_in(host, *sources):
        cells = [nbformat.v4.new_code_cell(source.strip()) for source in sources]
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
        nbformat.write(notebook, server.root / name)
        return PAGES[host](context.new_page(), server).open(name)

    yield open_in
    context.close()
    server.shut_down_kernel_of(name)


def open_picker(open_in, host):
    """The picker on screen, with a cell below it that launches."""
    lab = open_in(host, PREPARE, "picker", LAUNCH)
    run_cell(lab, 0)
    assert lab.outputs(0) == []
    run_cell(lab, 1)
    lab.page.wait_for_selector(".nba-picker input")
    return lab


def run_cell(lab, index):
    """Run one cell, also a second time, and wait for its end."""
    content = "window.jupyterapp.shell.currentWidget.content"
    count = f"{content}.widgets[{index}].model.executionCount"
    before = lab.page.evaluate(f"() => {count}")
    lab.page.evaluate(f"() => {{ {content}.activeCellIndex = {index} }}")
    lab.command("notebook:run-cell")
    lab.page.wait_for_function(f"before => ({count} ?? 0) > (before ?? 0)", arg=before)
    lab.wait_done(index, timeout_s=60)


def launch(lab):
    run_cell(lab, 2)
    outputs = lab.outputs(2)
    assert all("text" in one for one in outputs), outputs
    return "".join(one["text"] for one in outputs)


def pick_by_mouse(page):
    field = page.get_by_role("spinbutton", name="Processes")
    field.click(click_count=3)
    page.keyboard.type("2")
    page.locator("label", has_text="bf16").click()
    page.wait_for_selector("text=32 x 2 ranks = 64 samples")


def focused(page):
    """What the keyboard's focus is on, in words a person would use."""
    return page.evaluate(
        """() => {
            const at = document.activeElement;
            return (at.labels?.[0] ?? at).innerText ?? '';
        }"""
    )


def tab_to(page, text, most=60):
    """Press Tab until the focus is on what is called ``text``."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if focused(page).startswith(text):
            return
    raise AssertionError(f"Tab does not reach {text!r}; it is at {focused(page)!r}")


def boxes_beside_words(page):
    """How many pixels each box stands below the middle of the words beside it."""
    return page.evaluate(
        """() => [...document.querySelectorAll('.nba-picker input[type=checkbox]')].map(box => {
            const middle = one => (one.top + one.bottom) / 2;
            const words = box.labels[0].querySelector('span').getBoundingClientRect();
            return middle(box.getBoundingClientRect()) - middle(words);
        })"""
    )


@pytest.mark.parametrize("host", ["lab", "notebook"])
def test_two_processes_and_bf16_picked_by_mouse_are_launched(open_in, host, theme, shots):
    lab = open_picker(open_in, host)
    pick_by_mouse(lab.page)
    text = launch(lab)
    lab.page.mouse.move(600, 880)
    lab.shot(shots(f"picker_{host}"))
    assert 'num_processes=2, mixed_precision="bf16"' in lab.page.inner_text(".nba-picker pre")
    assert f"{[(2, 'bf16', 1)] * 2}" in text
    harmless = getattr(lab, "HARMLESS", ())
    assert [one for one in lab.complaints if not any(word in one for word in harmless)] == []


@LIGHT
def test_the_keyboard_alone_is_enough(open_in, theme, shots):
    lab = open_picker(open_in, "lab")
    page = lab.page
    page.locator(".nba-picker input").first.focus()
    tab_to(page, "Processes")
    page.keyboard.press("ArrowUp")
    page.wait_for_selector("text=32 x 2 ranks = 64 samples")
    assert focused(page).startswith("Processes"), "the focus stays where the person is"
    tab_to(page, "no ●")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("text=bf16 (chosen)")
    assert focused(page).startswith("bf16")
    tab_to(page, "Accumulation")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    page.wait_for_selector("text=32 x 2 ranks x 3 micro-batches = 192 samples")
    tab_to(page, "notebook_launcher(main")
    tab_to(page, "Time the precisions")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=speed (float32 is 1)", timeout=60_000)
    lab.shot(shots("picker_by_keyboard"))
    assert f"{[(2, 'bf16', 3)] * 2}" in launch(lab)


@LIGHT
def test_arrows_move_in_radios_and_the_focus_stays_there(open_in, theme):
    lab = open_picker(open_in, "lab")
    page = lab.page
    page.locator(".nba-picker input").first.focus()
    tab_to(page, "no ●", most=3)
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("text=bf16 (chosen)")
    assert focused(page).startswith("bf16"), "and the cell's neighbor has not taken it"
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("text=fp16 (chosen)")
    page.keyboard.press("ArrowUp")
    page.wait_for_selector("text=bf16 (chosen)")
    page.keyboard.press("Tab")
    assert focused(page).startswith("auto"), "a group is one stop"
    page.keyboard.press("Shift+Tab")
    assert focused(page).startswith("bf16"), "at what is picked"


@LIGHT
def test_in_voila_a_button_launches_what_was_picked(open_in, theme, shots):
    page = open_in("voila", PREPARE, APPLICATION).page
    pick_by_mouse(page)
    page.get_by_role("button", name="Train").click()
    page.wait_for_selector("text=trained:", timeout=60_000)
    page.screenshot(path=shots("picker_voila"))
    assert page.get_by_text("trained:").inner_text() == f"trained: {[(2, 'bf16', 1)] * 2}"


@LIGHT
def test_running_the_cell_again_keeps_what_was_picked(open_in, theme):
    lab = open_picker(open_in, "lab")
    pick_by_mouse(lab.page)
    run_cell(lab, 0)
    run_cell(lab, 1)
    lab.page.wait_for_selector("text=32 x 2 ranks = 64 samples")
    assert lab.page.get_by_role("spinbutton", name="Processes").input_value() == "2"
    assert lab.page.get_by_role("radio", name="bf16").is_checked()


def test_a_strategy_asks_its_questions_and_the_line_has_the_answers(open_in, theme, shots):
    lab = open_in("lab", PREPARE, "picker", LAUNCH, ADVISE)
    run_cell(lab, 0)
    run_cell(lab, 1)
    page = lab.page
    page.wait_for_selector(".nba-picker input")
    field = page.get_by_role("spinbutton", name="Processes")
    field.click(click_count=3)
    page.keyboard.type("2")
    page.keyboard.press("Tab")
    page.locator("label", has_text="fsdp: a share").click()
    page.locator("label", has_text="On the CPU").click()
    line = 'device="cpu", num_processes=2, mixed_precision="no", strategy=FSDP(cpu_offload=True))'
    page.wait_for_selector(f"text={line}")
    page.screenshot(path=shots("picker_strategies"))
    assert max(map(abs, boxes_beside_words(page))) < 3, "a box stands beside its words"
    run_cell(lab, 3)
    page.wait_for_selector("td:has-text('ZeRO 3')").scroll_into_view_if_needed()
    page.screenshot(path=shots("advice"))
    assert launch(lab).endswith("[(2, 'no', 1), (2, 'no', 1)]\n")
    assert lab.complaints == []

"""The playground as a person uses it: guess, press Run it, keep a rank away, read what is said."""

from __future__ import annotations

import nbformat
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(200)]

CELLS = [
    "from notebook_accel import playground",
    "stage = playground.show()\nstage",
    "playground.reduce_scatter(num_ranks=4)",
    "playground.all_gather(num_ranks=3)",
]


@pytest.fixture
def lab(open_notebook, tmp_path):
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    path = tmp_path / "playground.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)
    lab = open_notebook(path)
    lab.command("notebook:run-all-cells")
    lab.wait_done(len(CELLS) - 1, timeout_s=90)
    lab.page.get_by_role("button", name="Run it").wait_for()
    return lab


def stage(lab):
    """The text of the controls' cell."""
    return lab.page.locator(".jp-OutputArea-output").first.inner_text()


def test_a_collective_is_picked_run_and_stuck(lab, shots):
    page = lab.page
    lab.shot(shots("playground_before"))
    assert "?" in stage(lab), "nothing has run, so that a person can guess"

    page.get_by_role("button", name="broadcast").click()
    page.get_by_role("combobox", name="source").select_option("2")
    page.get_by_text("every rank gets the buffer of rank 2").wait_for()
    field = page.get_by_role("textbox", name="rank 2")
    field.fill("7, 8, 9")
    field.press("Enter")
    page.get_by_role("button", name="Run it").click()
    page.wait_for_function(  # rank 2 brought it, and three ranks hold it
        """() => document.querySelector('.jp-OutputArea-output').innerText
            .split('7\\n2').length === 5""",
        timeout=60_000,
    )
    lab.shot(shots("playground_broadcast"))

    page.get_by_role("checkbox", name="takes part").nth(2).uncheck()
    page.get_by_role("button", name="Run it").click()
    page.wait_for_selector("text=the ranks got stuck", timeout=60_000)
    lab.shot(shots("playground_stuck"))
    said = stage(lab)
    assert "did not come" in said
    assert "rank 2 returned early" in said
    assert "in broadcast" in said
    assert lab.complaints == []


def test_what_cannot_be_is_said_in_place(lab, shots):
    page = lab.page
    field = page.get_by_role("textbox", name="rank 0")
    field.fill("one, two")
    field.press("Enter")
    page.get_by_text("is not a list of numbers").wait_for()
    lab.shot(shots("playground_error"))
    assert field.input_value() == "1, 2, 3"

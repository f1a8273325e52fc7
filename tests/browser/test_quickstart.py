"""The quickstart, run in JupyterLab as a person would run it."""

from __future__ import annotations

import time
from pathlib import Path

import nbformat
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(300)]

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "1_beginner" / "01_quickstart.ipynb"


def picture_of(lab, index):
    """The picture that a cell shows right now, or None."""
    for output in reversed(lab.outputs(index)):
        if image := output.get("data", {}).get("image/png"):
            return image
    return None


def curve_of(lab):
    """What the panel says of its first curve, or None."""
    return lab.page.evaluate(
        "() => document.querySelector('.nba canvas')?.getAttribute('aria-label') ?? null"
    )


def test_the_curve_moves_while_the_cell_runs_and_stays_in_the_file(open_notebook, server, shots):
    lab = open_notebook(NOTEBOOK)
    launch = lab.index_of("notebook_launcher(main")
    lab.show(launch)
    lab.command("notebook:run-all-cells")
    seen = set()
    deadline = time.monotonic() + 150
    while not lab.is_done(launch):
        assert time.monotonic() < deadline, "the launching cell did not end"
        curve = curve_of(lab)
        if curve is not None and curve not in seen:
            seen.add(curve)
            if len(seen) == 3:
                lab.show(launch)
                lab.shot(shots("training"))
        time.sleep(0.05)
    lab.wait_done(lab.num_cells() - 1)
    assert len(seen) >= 3, "the curve was there before the end, and it moved"

    lab.show(launch)
    lab.page.wait_for_timeout(500)
    lab.shot(shots("quickstart"))
    assert lab.painted_images(launch) == 1
    final = picture_of(lab, launch)

    lab.save()
    saved = nbformat.read(server.root / NOTEBOOK.name, as_version=4)
    cell = next(c for c in saved.cells if "notebook_launcher(main" in c.source)
    pictures = [o.data for o in cell.outputs if "image/png" in o.get("data", {})]
    assert len(pictures) == 1
    assert "".join(pictures[0]["image/png"].split()) == "".join(final.split())
    assert "loss" in pictures[0]["text/plain"]
    assert not [o for c in saved.cells for o in c.get("outputs", []) if o.output_type == "error"]
    assert lab.complaints == []

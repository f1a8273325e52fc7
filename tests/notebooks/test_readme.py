"""What the README shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.timeout(120)
def test_its_cells_run_and_end_in_a_picture():
    sources = re.findall(r"```python\n(.*?)```", README, re.DOTALL)  # tests/docs: py and bash
    assert len(sources) == 6
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])
    NotebookClient(notebook, timeout=90, kernel_name="python3").execute()
    launch, after, compared = notebook.cells[3:]
    assert any("image/png" in output.get("data", {}) for output in launch.outputs)
    assert any("image/png" in output.get("data", {}) for output in after.outputs)
    assert any("image/png" in output.get("data", {}) for output in compared.outputs)


def test_its_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(links) > 3
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert missing == []

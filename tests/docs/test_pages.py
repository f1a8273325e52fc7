"""The documentation: what its pages show is what happens, and nothing in it leads nowhere.

Blocks fenced ``python`` run in a kernel, a page from top to bottom; ``py`` blocks need what is not
here (a GPU, a page of somebody else's) and are type-checked with the names that they leave open.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "decisions" not in path.parts)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

# What blocks for other places take from the page around them.
OPEN = """
from typing import Any
import torch
from torch import nn
from torch.utils.data import DataLoader
from notebook_accel import DDP, Accelerator, notebook_launcher
accelerator: Accelerator
main: Any
trainer: Any
x: torch.Tensor
data: Any
logits: Any
labels: Any
num_tokens: Any
cross_entropy: Any
"""


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return [body for name, body in _BLOCK.findall(text) if name == language]


def having(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


def named(page: Path) -> str:
    return str(page.relative_to(DOCS))


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("page", having("python"), ids=named)
def test_its_cells_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTEBOOK_ACCEL_RUNS", str(tmp_path / "runs"))
    cells = [nbformat.v4.new_code_cell(block) for block in blocks(page, "python")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=where).execute()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_what_cannot_run_here_is_at_least_well_typed(tmp_path: Path) -> None:
    for page in having("py"):
        for number, block in enumerate(blocks(page, "py")):
            (tmp_path / f"{page.stem.replace('-', '_')}_{number}.py").write_text(OPEN + block)
    command = [sys.executable, "-m", "mypy", "--config-file=", "--ignore-missing-imports"]
    command += ["--no-incremental", "--disable-error-code=no-redef", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_its_shell_commands_are_ours_and_exist(page: Path) -> None:
    from notebook_accel.cli.main import COMMANDS

    for block in blocks(page, "bash"):
        for command in re.findall(r"^notebook-accel (\S+)", block, re.MULTILINE):
            assert command in COMMANDS, f"{named(page)}: notebook-accel {command}"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_it_builds_without_a_warning_and_no_link_in_it_leads_nowhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # an advertisement on stderr
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    page = (tmp_path / "reference" / "training" / "index.html").read_text(encoding="utf-8")
    assert "gather_for_metrics" in page


def test_every_public_name_is_on_a_page_of_the_reference() -> None:
    from notebook_accel import _MODULES, _WHERE

    pages = (DOCS / "reference").glob("*.md")
    shown = {
        line.removeprefix("::: notebook_accel.")
        for page in pages
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("::: ")
    }
    missing = [
        name for name, module in _WHERE.items() if not shown & {module, f"{module}.{name}"}
    ] + [name for name, module in _MODULES.items() if module not in shown]
    assert missing == []


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [named(page) for page in PAGES if f": {named(page)}" not in menu] == []

"""The install cell says what it misses; tests/test_wheel.py sees it install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "notebooks" / "1_beginner" / "01_quickstart.ipynb"
(CELL,) = [
    cell.source
    for cell in nbformat.read(QUICKSTART, as_version=4).cells
    if cell.cell_type == "code" and "SOURCE = " in cell.source
]


def said(where: Path) -> str:
    """What the cell ends in, in an interpreter that has no package at all."""
    command = [sys.executable, "-I", "-S", "-c", CELL]
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    return done.stderr


def test_without_a_wheel_and_an_address_it_says_how_to_bring_one(tmp_path: Path) -> None:
    if "SOURCE = None" not in CELL:
        pytest.skip("there is an address: this would install from it")
    error = said(tmp_path)
    assert "ModuleNotFoundError: notebook_accel is not installed, and no notebook_accel-*" in error
    assert "  why: the project has no public address yet" in error
    assert "  do:  `pip install .` in a copy of the repository; or `make wheel` there" in error


def test_what_pip_cannot_install_is_told_in_pips_words(tmp_path: Path) -> None:
    (tmp_path / "notebook_accel-9-py3-none-any.whl").write_text("no wheel")
    error = said(tmp_path)
    assert "RuntimeError: pip could not install ./notebook_accel-9-py3-none-any.whl" in error
    assert "  why: " in error and "is invalid" in error
    assert "  do:  if the internet is off, turn it on (Kaggle: Settings)" in error


def test_where_the_package_is_it_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "notebook_accel-9-py3-none-any.whl").write_text("no wheel")
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{CELL}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

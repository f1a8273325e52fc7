"""Whose a line is, and where it is in the person's own terms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import notebook_accel
from notebook_accel.events.lines import BETWEEN, THE_PERSON, US, owner_of, place_of

HERE = Path(notebook_accel.__file__).parent


@pytest.mark.parametrize(
    ("filename", "owner"),
    [
        (notebook_accel.__file__, US),
        (f"{HERE}_course/train.py", THE_PERSON),
        (json.__file__, BETWEEN),
        (torch.__file__, BETWEEN),
        ("<frozen importlib._bootstrap>", BETWEEN),
        ("train.py", THE_PERSON),
    ],
)
def test_each_line_has_an_owner(filename: str, owner: int) -> None:
    assert owner_of(filename) == owner


def test_a_cell_that_no_shell_here_knows_is_a_file() -> None:
    """A fresh worker has the cell's code, but not the notebook's history."""
    assert place_of("ipykernel_12/345.py", 3) == "File ipykernel_12/345.py:3"

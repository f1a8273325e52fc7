"""Rows added to a batch so that it divides evenly."""

from __future__ import annotations

import pytest
import torch

from notebook_accel.ranks.padding import pad_input_tensors


@pytest.mark.parametrize(("rows", "padded"), [(8, 8), (6, 8), (1, 4)])
def test_a_batch_becomes_a_multiple_of_the_ranks(rows: int, padded: int) -> None:
    """CT07: 8 rows and 6 rows for 4 processes are 8."""
    batch = torch.arange(rows * 2.0).view(rows, 2)
    got = pad_input_tensors(batch, rows, 4)
    assert got.shape == (padded, 2)
    assert torch.equal(got[:rows], batch)
    assert torch.equal(got[rows:], batch[-1].expand(padded - rows, 2))


def test_only_what_belongs_to_the_batch_is_padded() -> None:
    given = {"x": torch.ones(2, 6), "table": torch.ones(5), "scale": torch.tensor(2.0), "name": "a"}
    got = pad_input_tensors(given, 6, 4, dim=1)
    assert got["x"].shape == (2, 8)
    assert got["table"].shape == (5,)
    assert got["scale"].shape == ()
    assert got["name"] == "a"

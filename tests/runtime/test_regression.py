"""The smallest training there is."""

from __future__ import annotations

import torch

from notebook_accel.test_utils import RegressionDataset, RegressionModel


def test_points_lie_near_the_line_and_depend_on_the_seed_alone() -> None:
    points = RegressionDataset(a=2, b=3, length=200, seed=1)
    again = RegressionDataset(a=2, b=3, length=200, seed=1)
    assert len(points) == 200
    assert torch.equal(points.x, again.x) and torch.equal(points.y, again.y)
    line = RegressionModel(a=2, b=3)
    item = points[5]
    assert abs(line(item["x"]) - item["y"]) < 1
    assert (line(points.x) - points.y).std() < 0.2
    assert not torch.equal(points.x, RegressionDataset(length=200).x)


def test_the_line_can_be_given_twice() -> None:
    first, second = RegressionModel(a=1, double_output=True)(torch.ones(3))
    assert torch.equal(first, second) and first.tolist() == [1.0, 1.0, 1.0]

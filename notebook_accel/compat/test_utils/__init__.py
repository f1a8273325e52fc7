"""Accelerate's ``test_utils`` package: the datasets of its small tests."""

from notebook_accel.compat.doors import door as _door
from notebook_accel.runtime.regression import RegressionDataset, RegressionModel

__all__ = [
    "RegressionDataset",
    "RegressionModel",
]

__getattr__ = _door(__name__)

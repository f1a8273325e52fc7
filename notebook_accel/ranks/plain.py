"""Numbers and arrays of the person's own, as tensors: only those travel between ranks."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

# What torch has, by the names that it and numpy share.
_DTYPES = {"bool", "float16", "float32", "float64", "complex64", "complex128"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


def is_array(one: Any) -> bool:
    """Whether ``one`` is an array of numpy's."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(one, numpy.ndarray)


def is_number(one: Any) -> bool:
    """Whether ``one`` is a number, Python's or numpy's."""
    if isinstance(one, (bool, int, float, complex)):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(one, numpy.generic) and one.dtype.name in _DTYPES


def is_like_a_tensor(one: Any) -> bool:
    """Whether a tensor can hold what ``one`` holds: a number, or an array of numbers."""
    return is_number(one) or (is_array(one) and one.dtype.name in _DTYPES)


def as_tensor(one: Any, device: torch.device) -> Tensor:
    """Make a tensor of a number or an array of numbers, on ``device``; never of its memory."""
    if is_array(one):  # in the machine's own order of bytes, without gaps
        one = one.astype(one.dtype.name, order="C", copy=True)
    made = torch.tensor(one)
    if device.type == "mps" and made.dtype == torch.float64:  # which has none
        made = made.float()
    return made.to(device)

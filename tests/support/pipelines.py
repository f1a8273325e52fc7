"""Pipelines held to the single device: numbers of every rank beside those of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from notebook_accel import notebook_launcher

Numbers = dict[tuple, list[float]]


def agree(
    sizes: Mapping[int, tuple[str, ...]],
    settings: list[tuple],
    alone: Callable[[list[tuple]], Numbers],
    in_stages: Callable[[tuple[str, ...], list[tuple]], Numbers],
    tolerances: Mapping[str, float],
) -> None:
    """Compare what ``in_stages`` gives on each number of ranks with what ``alone`` gives on one.

    A setting's second part is its precision. The first rank has the whole state, the others losses
    and norms alone.
    """
    expected = notebook_launcher(alone, (settings,), 1, device="cpu")[0]
    for size, names in sizes.items():
        run = notebook_launcher(in_stages, (names, settings), size, device="cpu", timeout_s=500)
        assert len(run[0]) >= len(names)
        for rank, found in enumerate(run):
            for (name, *setting), numbers in found.items():
                tolerance = tolerances[setting[1]]
                wanted = expected[tuple(setting)][: len(numbers)]
                assert rank or len(numbers) == len(expected[tuple(setting)])
                near = pytest.approx(wanted, abs=tolerance, rel=tolerance)
                assert numbers == near, (size, rank, name, setting)

from __future__ import annotations

import random

import numpy
import torch

from notebook_accel.ranks.seeding import draw_shared_seed, set_seed
from notebook_accel.ranks.world import World


def draws() -> list[float]:
    return [random.random(), float(numpy.random.rand()), torch.rand(1).item()]


def test_a_seed_fixes_python_numpy_and_torch() -> None:
    set_seed(5)
    first = draws()
    set_seed(5)
    assert draws() == first
    set_seed(6)
    assert all(a != b for a, b in zip(draws(), first, strict=True))


def test_device_specific_seeds_are_apart_and_join_nothing(monkeypatch) -> None:
    set_seed(6)
    expected = draws()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    set_seed(5, device_specific=True)
    assert draws() == expected
    assert not torch.distributed.is_initialized()


def test_rank_0_of_device_specific_seeds_has_the_seed_itself() -> None:
    set_seed(5)
    first = draws()
    set_seed(5, device_specific=True)
    assert draws() == first


def test_deterministic_asks_torch_for_deterministic_algorithms() -> None:
    try:
        set_seed(0, deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_shared_seed_is_the_number_that_a_plain_sampler_draws() -> None:
    torch.manual_seed(1)
    plain = int(torch.empty((), dtype=torch.int64).random_().item())
    torch.manual_seed(1)
    assert draw_shared_seed(World.alone()) == plain

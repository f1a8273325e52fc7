"""Devices as a person names them."""

from __future__ import annotations

from typing import Any

import pytest

from notebook_accel.errors import ConfigError
from notebook_accel.launch.capacity import CARDS, Capacity, capacity
from tests.support import hardware

GIB = 2**30


def read(devices: Any, machine: Any = hardware.KAGGLE) -> Capacity:
    return capacity(devices, lambda: machine)


@pytest.mark.parametrize(
    ("written", "count", "gigabytes"),
    [
        ("80GB", 1, 80),
        ("80 GB x8", 8, 80),
        ("4 x 24gb", 4, 24),
        ("2x16GiB", 2, 16 * GIB / 1e9),
        ("T4", 1, CARDS["T4"][0] * GIB / 1e9),
        ("T4 x2", 2, CARDS["T4"][0] * GIB / 1e9),
        ("2 x Tesla T4", 2, CARDS["T4"][0] * GIB / 1e9),
        ("A100-80GB x8", 8, 80),
        ("rtx 4090", 1, CARDS["RTX4090"][0] * GIB / 1e9),
        (["24GB", "16GB"], 2, 16),
        (["T4"], 1, CARDS["T4"][0] * GIB / 1e9),
        ([24_000_000_000], 1, 24),
        ({"cuda:0": "14GB", "cuda:1": "12GB", "cpu": "30GB"}, 2, 12),
        ({0: 14_000_000_000}, 1, 14),
        ({"H100": 8}, 8, CARDS["H100"][0] * GIB / 1e9),
        (40_000_000_000, 1, 40),
    ],
)
def test_devices_are_read_as_people_write_them(written: Any, count: int, gigabytes: float) -> None:
    found = read(written)
    assert len(found.devices) == count
    assert found.bytes_each / 1e9 == pytest.approx(gigabytes)
    assert not found.shares_host


def test_without_a_word_it_is_what_is_here_as_far_as_it_is_free() -> None:
    found = read(None)
    assert found.words == "2 x Tesla T4"
    assert found.bytes_each == min(one.free_bytes for one in hardware.KAGGLE.devices)
    assert len(read(1).devices) == len(read([1]).devices) == 1
    assert read([1]).devices[0].index == 1
    assert len(read(8).devices) == 8  # as if there were more of these


def test_the_memory_beside_the_devices_is_known_where_they_are_those_of_this_machine() -> None:
    free = hardware.KAGGLE.free_bytes
    assert [read(one).host_bytes for one in (None, 2, [1], "cuda")] == [free] * 4
    assert [read(one).host_bytes for one in (8, "T4 x2", ["80GB"], "cpu")] == [0] * 4


def test_a_card_that_nobody_knows_is_said_by_the_name_of_the_argument() -> None:
    with pytest.raises(ConfigError, match="devices='banana' is not known"):
        read("banana x2")


def test_ranks_on_the_cpu_share_its_memory() -> None:
    found = read("cpu")
    assert found.shares_host and found.words == "1 rank on the CPU"
    four = read(4, hardware.machine())
    assert four.words == "4 ranks on the CPU"
    assert four.bytes_each == read(1, hardware.machine()).bytes_each // 4


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("24XB", r"devices='24XB' is not known"),
        ("T5", r"devices='T5' is not known(.|\n)*'T4'"),
        ("0GB", "has no memory"),
        ("1.2.3GB", "has no memory"),
        ("T4 x0", "has no memory"),
        ([], "names no device"),
        ({}, "names no device"),
        ([7], "there is no GPU 7 here"),
        (["24GB", 3], "3 names no device"),
        (2.5, "2.5 names no device"),
        (True, "True names no device"),
        ({"cuda:0": True}, "True names no device"),
    ],
)
def test_what_names_no_device_is_told_with_a_way_to_write_it(written: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(written)


def test_a_gpu_that_is_not_here_is_told() -> None:
    with pytest.raises(ConfigError, match=r"there is no GPU here(.|\n)*T4 x2"):
        read("cuda", hardware.machine())

"""Numbers and kinds in words."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from notebook_accel.config import words


def test_a_number_comes_with_its_noun() -> None:
    assert words.counted(1, "rank") == "1 rank"
    assert words.counted(0, "rank") == "0 ranks"
    assert words.counted(2, "process", "processes") == "2 processes"
    assert words.counted(1, "process", "processes") == "1 process"
    assert words.counted(1_234_567, "parameter") == "1,234,567 parameters"


def test_a_type_is_named_with_its_article() -> None:
    assert [words.kind_of(one) for one in ([], 3, OrderedDict())] == [
        "a list", "an int", "an OrderedDict"
    ]  # fmt: skip


def test_ranks_are_written_as_a_person_would() -> None:
    assert words.ranks([3]) == "rank 3"
    assert words.ranks([1, 0]) == "ranks 0 and 1"
    assert words.ranks([2, 0, 1]) == "ranks 0-2"
    assert words.ranks([0, 2, 5]) == "ranks 0, 2, 5"


def test_ranks_are_named_in_the_shortest_way() -> None:
    assert [words.spanned(r) for r in ([0], [0, 1], [3, 0, 1, 2], [0, 2, 3])] == [
        "0", "0,1", "0-3", "0,2,3"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("size", "written"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1500, "1.5 kB"),
        (38.2e6, "38 MB"),
        (1e9, "1.0 GB"),
        (2.5e12, "2.5 TB"),
    ],
)
def test_sizes_are_written_short(size: float, written: str) -> None:
    assert words.size(size) == written


def test_numbers_and_addresses_do_not_tell_failures_apart() -> None:
    here, there = "<Net at 0x7f3a10> on cuda:0", "<Net at 0x7fbb2c> on cuda:1"
    assert words.without_numbers(here) == words.without_numbers(there)
    assert words.without_numbers(here) != words.without_numbers("<Net at 0x7f3a10> on mps:0")

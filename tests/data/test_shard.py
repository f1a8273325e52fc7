"""Index arithmetic: who gets which samples, and what is a repeat."""

from __future__ import annotations

import numpy
import pytest
import torch

from notebook_accel.data.shard import (
    NotASequence,
    Rule,
    Share,
    distributed_sampler_shares,
    split_between,
)
from notebook_accel.errors import ConfigError


def batches_of(num: int, size: int, drop_last: bool = False) -> list[list[int]]:
    whole = [list(range(i, min(i + size, num))) for i in range(0, num, size)]
    return [batch for batch in whole if not drop_last or len(batch) == size]


def dealt(batches: list[list[int]], size: int, batch_size: int | None, **rule: bool) -> list:
    return [
        [batch for batch, _ in Rule(rank, size, batch_size, **rule).deal(batches)]
        for rank in range(size)
    ]


def test_the_tail_is_completed_from_the_start_of_the_pass() -> None:
    assert dealt(batches_of(5, 2), 2, 2) == [[[0, 1], [4, 0]], [[2, 3], [1, 2]]]


def test_without_even_batches_ranks_get_what_there_is() -> None:
    assert dealt(batches_of(5, 2), 2, 2, even=False) == [[[0, 1], [4]], [[2, 3]]]


def test_drop_last_drops_an_incomplete_round() -> None:
    got = dealt(batches_of(7, 2, drop_last=True), 2, 2, drop_last=True)
    assert got == [[[0, 1]], [[2, 3]]]


def test_one_sample_fills_everybody_s_batch() -> None:
    assert dealt([[0]], 2, 4) == [[[0, 0, 0, 0]], [[0, 0, 0, 0]]]
    assert dealt([[0]], 2, 4, even=False) == [[[0]], []]


def test_an_empty_sampler_gives_nothing() -> None:
    assert dealt([], 3, 4) == [[], [], []]


def test_batches_of_unknown_size_are_not_split() -> None:
    with pytest.raises(ConfigError) as error:
        Rule(0, 2, None, split=True)
    assert "split_batches=True for a loader without a batch size, over 2 ranks" in error.value.what
    assert "ready-made batches (batch_size=None)" in error.value.why
    assert "give the DataLoader a batch_size" in error.value.fix


def test_split_batches_cuts_every_batch() -> None:
    assert dealt(batches_of(8, 4), 2, 4, split=True) == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    assert dealt(batches_of(5, 4), 2, 4, split=True) == [[[0, 1], [4, 0]], [[2, 3], [1, 2]]]
    uneven = dealt(batches_of(5, 4), 2, 4, split=True, even=False)
    assert uneven == [[[0, 1], [4]], [[2, 3]]]


def test_a_batch_size_that_cannot_be_split_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        Rule(0, 2, 3, split=True)
    assert "batch size 3 over 2 ranks" in error.value.what
    assert "multiple of 2" in error.value.fix


def test_batches_of_any_size_are_dealt_whole_and_completed_with_the_first_ones() -> None:
    assert dealt([[0, 1, 2], [3], [4, 5]], 2, None) == [[[0, 1, 2], [4, 5]], [[3], [0, 1, 2]]]


def test_a_short_batch_in_mid_stream_stays_where_it_is() -> None:
    assert dealt([[0, 1], [2], [3, 4], [5, 6]], 2, 2) == [[[0, 1], [3, 4]], [[2], [5, 6]]]


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_every_sample_is_real_exactly_once_and_lengths_are_foretold(
    size: int, split: bool, drop_last: bool, even: bool
) -> None:
    for num in range(40):
        for batch_size in (1, 2, 5):
            whole = batch_size * size if split else batch_size
            batches = batches_of(num, whole, drop_last)
            real: list[int] = []
            for rank in range(size):
                rule = Rule(rank, size, whole, drop_last, even, split)
                got = list(rule.deal(batches))
                if even or not split:
                    assert len(got) == rule.num_batches(len(batches)), (num, batch_size, rank)
                for batch, share in got:
                    assert share.rows[rank] == len(batch)
                    real += batch[: share.real[rank]]
                if even:
                    assert all(len(batch) == batch_size for batch, _ in got)
            assert len(set(real)) == len(real)
            if not drop_last:
                assert sorted(real) == list(range(num))


def test_all_ranks_are_told_the_same_shares() -> None:
    for num in range(1, 30):
        told = [
            [share for _, share in Rule(rank, 3, 2).deal(batches_of(num, 2))] for rank in range(3)
        ]
        assert told[0] == told[1] == told[2]


def test_shares_of_a_distributed_sampler_match_what_it_reads() -> None:
    from torch.utils.data import BatchSampler, DistributedSampler

    for num in range(1, 20):
        read: list[int] = []
        for rank in range(3):
            sampler = DistributedSampler(range(num), 3, rank, shuffle=False)
            shares = list(distributed_sampler_shares(num, 3, 2, drop_last=False))
            batches = list(BatchSampler(sampler, 2, drop_last=False))
            assert len(batches) == len(shares)
            for batch, share in zip(batches, shares, strict=True):
                read += batch[: share.real[rank]]
        assert sorted(read) == list(range(num))


def test_a_share_is_even_when_all_have_equally_many_real_rows() -> None:
    assert Share((2, 2), (2, 2)).even
    assert not Share((2, 2), (2, 1)).even
    assert not Share((2, 1), (2, 1)).even
    assert not Share((-1, -1), (-1, -1)).even


def test_splitting_between_processes_cuts_any_sequence() -> None:
    def both(inputs: object, padding: bool = False) -> list:
        return [split_between(inputs, rank, 2, padding) for rank in range(2)]

    assert both([1, 2, 3]) == [[1, 2], [3]]
    assert both((1, 2, 3), padding=True) == [(1, 2), (3, 3)]
    assert both(range(3)) == [range(2), range(2, 3)]
    assert both({"a": [1, 2, 3], "b": (4, 5, 6)}) == [
        {"a": [1, 2], "b": (4, 5)},
        {"a": [3], "b": (6,)},
    ]
    assert [part.tolist() for part in both(numpy.arange(3))] == [[0, 1], [2]]
    assert [part.tolist() for part in both(numpy.arange(3), True)] == [[0, 1], [2, 2]]
    assert [part.tolist() for part in both(torch.arange(3), True)] == [[0, 1], [2, 2]]
    assert split_between([7], 2, 3, padding=True) == [7]


def test_a_dataset_of_columns_is_cut_by_its_own_means() -> None:
    class Columns:  # what Hugging Face's Dataset has: a slice of it would be a dict
        column_names = ("x",)

        def __init__(self, rows: list[int]) -> None:
            self.rows = rows

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, key: object) -> dict:
            raise AssertionError("not by slices")

        def select(self, indices: list[int]) -> Columns:
            return Columns([self.rows[index] for index in indices])

    parts = [split_between(Columns([5, 6, 7]), rank, 2, padding=True) for rank in range(2)]
    assert [part.rows for part in parts] == [[5, 6], [7, 7]]


def test_splitting_leaves_the_given_dict_alone() -> None:
    inputs = {"a": [1, 2]}
    split_between(inputs, 0, 2)
    assert inputs == {"a": [1, 2]}


def test_a_generator_cannot_be_split() -> None:
    with pytest.raises(TypeError) as error:
        split_between((i for i in range(3)), 0, 2)
    assert isinstance(error.value, NotASequence)
    assert "got a generator" in error.value.what
    assert "list(...)" in error.value.fix


def test_a_dict_of_unequal_lengths_cannot_be_split() -> None:
    with pytest.raises(ConfigError, match=r"unequal lengths: \{'a': 1, 'b': 2\}"):
        split_between({"a": [1], "b": [1, 2]}, 0, 2)

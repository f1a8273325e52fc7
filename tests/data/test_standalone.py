"""Sharding by Accelerate's names, without an Accelerator."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from notebook_accel.data_loader import (
    BatchSamplerShard,
    DataLoaderShard,
    IterableDatasetShard,
    SeedableRandomSampler,
    SkipBatchSampler,
    SkipDataLoader,
    get_sampler,
    prepare_data_loader,
    skip_first_batches,
)
from notebook_accel.errors import ConfigError


def shards(num: int, batch_size: int, ranks: int, drop_last: bool = False, **how: bool) -> list:
    batches = BatchSampler(range(num), batch_size, drop_last)
    dealt = [BatchSamplerShard(batches, ranks, rank, **how) for rank in range(ranks)]
    assert [len(one) for one in dealt] == [len(list(one)) for one in dealt]
    return [list(one) for one in dealt]


def test_batches_are_dealt_round_and_the_tail_completed_from_the_start() -> None:
    assert shards(5, 2, 2) == [[[0, 1], [4, 0]], [[2, 3], [1, 2]]]
    assert shards(5, 2, 2, even_batches=False) == [[[0, 1], [4]], [[2, 3]]]
    assert shards(5, 2, 2, drop_last=True) == [[[0, 1]], [[2, 3]]]


def test_batches_can_be_cut_instead() -> None:
    assert shards(8, 4, 2, split_batches=True) == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    with pytest.raises(ConfigError) as error:
        shards(8, 3, 2, split_batches=True)
    assert "batch size 3 over 2 ranks" in error.value.what


class Stream(IterableDataset[int]):
    epoch = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        yield from range(self.epoch, self.epoch + 5)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_streams_are_dealt_in_batches() -> None:
    parts = [IterableDatasetShard(Stream(), 2, False, 2, rank) for rank in (0, 1)]
    assert [list(one) for one in parts] == [[0, 1, 4, 0], [2, 3, 1, 2]]
    parts[0].set_epoch(10)
    assert list(parts[0])[:2] == [10, 11]
    dropped = [IterableDatasetShard(Stream(), 2, True, 2, rank) for rank in (0, 1)]
    assert [list(one) for one in dropped] == [[0, 1], [2, 3]]
    cut = [IterableDatasetShard(Stream(), 4, True, 2, rank, True) for rank in (0, 1)]
    assert [list(one) for one in cut] == [[0, 1], [2, 3]]


def test_a_seedable_order_depends_on_seed_and_epoch_alone() -> None:
    sampler = SeedableRandomSampler(range(10), data_seed=3)
    first, second = list(sampler), list(sampler)
    torch.rand(5)
    sampler.set_epoch(0)
    assert [list(sampler), list(sampler)] == [first, second]
    assert first != second and sorted(first) == list(range(10))
    expected = RandomSampler(range(10), generator=torch.Generator().manual_seed(3))
    assert first == list(expected)


def test_a_pass_that_is_broken_off_was_a_pass() -> None:
    """E4."""
    sampler = SeedableRandomSampler(range(10), data_seed=3)
    starts = [[index for index, _ in zip(sampler, range(5), strict=False)] for _ in range(3)]
    assert len({tuple(one) for one in starts}) == 3


def test_first_batches_can_be_left_out() -> None:
    assert list(SkipBatchSampler(BatchSampler(range(6), 2, False), 1)) == [[2, 3], [4, 5]]
    skipped = SkipDataLoader(list(range(6)), skip_batches=1, batch_size=2)
    assert [one.tolist() for one in skipped] == [[2, 3], [4, 5]]
    assert len(skip_first_batches(DataLoader(list(range(6)), batch_size=2), 2)) == 1


def test_the_sampler_is_found_under_batches() -> None:
    loader = DataLoader(list(range(6)), batch_size=2, shuffle=True)
    assert get_sampler(loader) is loader.sampler
    assert get_sampler(DataLoader(list(range(6)), batch_size=None)) is not None


def test_ready_made_batches_are_not_cut() -> None:
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([[0, 1], [2, 3]])

    for data in ([[0, 1], [2, 3]], Stream()):
        loader = DataLoader(data, batch_size=None)
        with pytest.raises(ConfigError, match="split_batches=True for a loader without a batch"):
            prepare_data_loader(loader, "cpu", 2, 0, split_batches=True, dispatch_batches=False)


def test_a_loader_can_be_prepared_for_any_rank() -> None:
    loader = DataLoader(list(range(5)), batch_size=2)
    parts = [prepare_data_loader(loader, "cpu", 2, rank) for rank in (0, 1)]
    assert all(isinstance(one, DataLoaderShard) for one in parts)
    assert [[b.tolist() for b in one] for one in parts] == [[[0, 1], [4, 0]], [[2, 3], [1, 2]]]
    alone = prepare_data_loader(loader, even_batches=False)
    assert [b.tolist() for b in alone] == [[0, 1], [2, 3], [4]]

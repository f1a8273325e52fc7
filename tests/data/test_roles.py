"""Accelerate's loader classes: which of them a prepared loader is, and what calling one gives."""

from __future__ import annotations

import pytest
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from notebook_accel.data_loader import (
    DataLoaderAdapter,
    DataLoaderDispatcher,
    DataLoaderShard,
    DataLoaderStateMixin,
    prepare_data_loader,
)
from notebook_accel.errors import RuntimeMisuse
from tests.support.ranks import run_ranks


def test_a_prepared_loader_plays_every_part_that_fits() -> None:
    plain = DataLoader(list(range(4)))
    loader = prepare_data_loader(plain)
    for kind in (DataLoaderShard, DataLoaderAdapter, DataLoaderStateMixin, DataLoader):
        assert isinstance(loader, kind)
    assert issubclass(type(loader), DataLoaderShard)
    assert not isinstance(loader, DataLoaderDispatcher)
    assert not isinstance(plain, DataLoaderAdapter) and not isinstance(4, DataLoaderShard)
    assert loader.base_dataloader is plain


def test_a_shard_reads_what_its_sampler_gives() -> None:
    batches = BatchSampler([1, 3, 5], 2, drop_last=False)
    loader = DataLoaderShard(list(range(6)), batch_sampler=batches)
    assert isinstance(loader, DataLoaderShard) and not isinstance(loader, DataLoaderDispatcher)
    assert [one.tolist() for one in loader] == [[1, 3], [5]]
    later = DataLoaderShard(list(range(6)), batch_size=2, skip_batches=1, iteration=3)
    assert later.epoch == 3 and [one.tolist() for one in later] == [[2, 3], [4, 5]]


def test_an_adapter_keeps_its_place() -> None:
    loader = DataLoaderAdapter(list(range(6)), batch_size=2)
    walk = iter(loader)
    next(walk)
    state = loader.state_dict()
    other = DataLoaderAdapter(list(range(6)), batch_size=2)
    other.load_state_dict(state)
    assert [one.tolist() for one in other] == [[2, 3], [4, 5]]


def test_a_loader_of_ones_own_knows_its_remainder() -> None:
    class Own(DataLoaderStateMixin, DataLoader):
        total_dataset_length, total_batch_size = 7, 4

    loader = Own(list(range(7)), batch_size=4)
    assert isinstance(loader, DataLoaderStateMixin) and isinstance(loader, Own)
    assert not isinstance(prepare_data_loader(DataLoader([1])), Own)
    assert (loader.remainder, loader.end_of_dataloader) == (-1, False)
    loader.begin()
    loader.end_of_dataloader = True
    assert loader.remainder == 3
    loader.end()
    loader.reset()
    assert (loader.remainder, loader.end_of_dataloader) == (-1, False)


def test_the_sampler_of_a_prepared_loader_can_be_exchanged() -> None:
    loader = prepare_data_loader(DataLoader(list(range(4)), batch_size=2))
    assert isinstance(loader.get_sampler(), SequentialSampler)
    loader.set_sampler([3, 2, 1, 0])
    assert [one.tolist() for one in loader] == [[3, 2], [1, 0]]
    assert (loader.remainder, loader.rng_types, loader._is_accelerate_prepared) == (0, [], True)
    odd = prepare_data_loader(DataLoader(list(range(5)), batch_size=2), "cpu", 2, 0)
    assert odd.remainder == 1
    whole = DataLoader(list(range(5)), batch_size=2, drop_last=True)
    assert prepare_data_loader(whole, "cpu", 2, 0).remainder == 0

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(2))

    stream = prepare_data_loader(DataLoader(Stream()))
    assert stream.remainder == -1
    with pytest.raises(RuntimeMisuse) as error:
        stream.set_sampler([0])
    assert "set_sampler() of a loader that reads a stream" in error.value.what
    assert error.value.why and "prepare it" in error.value.fix


def test_ranks_share_the_generator_of_a_shard_and_rank_0_reads_for_a_dispatcher() -> None:
    def body() -> list:
        import torch
        from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

        from notebook_accel import PartialState
        from notebook_accel.data_loader import (
            BatchSamplerShard,
            DataLoaderDispatcher,
            DataLoaderShard,
            prepare_data_loader,
        )

        rank = PartialState(cpu=True).process_index
        generator = torch.Generator().manual_seed(rank)  # unlike: rank 0's counts
        batches = BatchSampler(RandomSampler(range(8), generator=generator), 2, False)
        shard = BatchSamplerShard(batches, 2, rank)
        torch.manual_seed(rank)
        own = DataLoaderShard(
            list(range(8)),
            rng_types=["torch"],
            synchronized_generator=generator,
            batch_sampler=shard,
        )
        seen = [one.tolist() for one in own]
        drawn = int(torch.randint(1000, ()))

        class Stream(IterableDataset):
            def __iter__(self):
                return iter(range(8) if rank == 0 else [])

        dispatched = DataLoaderDispatcher(Stream(), batch_size=2)
        assert isinstance(dispatched, DataLoaderDispatcher)
        assert not isinstance(dispatched, DataLoaderShard)
        again = prepare_data_loader(DataLoader(Stream(), batch_size=2))
        assert isinstance(again, DataLoaderDispatcher)
        return [seen, drawn, [one.tolist() for one in dispatched]]

    (first, drawn0, dealt0), (second, drawn1, dealt1) = run_ranks(body, 2)
    assert sorted(i for part in (first, second) for batch in part for i in batch) == [*range(8)]
    assert drawn0 == drawn1
    assert (dealt0, dealt1) == ([[0, 1], [4, 5]], [[2, 3], [6, 7]])

"""A prepared loader on one process: the person's DataLoader, and the bare loop's order."""

from __future__ import annotations

import gc
import pickle
import re
from collections import namedtuple

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from notebook_accel.data.batch import num_rows, to_device
from notebook_accel.data.loader import PreparedLoader
from notebook_accel.data.prepare import prepare_loader
from notebook_accel.errors import ConfigError, RuntimeMisuse
from notebook_accel.ranks.world import World

ROWS = TensorDataset(torch.arange(10.0))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(5))


def prepared(loader: DataLoader) -> PreparedLoader:
    return prepare_loader(loader, World.alone())


def passes(loader: DataLoader, count: int = 2, dropout: bool = True) -> list:
    """What a loop sees in ``count`` passes, with random numbers drawn by the loop in between."""
    torch.manual_seed(7)
    seen = []
    for _ in range(count):
        for batch in loader:
            seen.append([part.tolist() for part in batch] if isinstance(batch, list) else batch)
            if dropout:
                seen.append(torch.rand(1).item())
    return seen


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 3, "shuffle": True},
        {"batch_size": 3, "shuffle": False},
        {"batch_size": 3, "shuffle": True, "drop_last": True},
        {"batch_size": 3, "shuffle": True, "num_workers": 1},
        {"batch_size": None, "shuffle": True},
        {"batch_size": 3, "sampler": RandomSampler(ROWS, replacement=True, num_samples=7)},
        {"batch_size": 3, "sampler": WeightedRandomSampler([1.0] * 10, 8)},
        {"batch_size": 3, "sampler": SubsetRandomSampler([1, 3, 5, 7])},
    ],
    ids=lambda options: re.sub(r"<.*\.(\w+) object at 0x\w+>", r"\1", str(options)),
)
def test_one_process_sees_exactly_what_the_bare_loop_sees(options: dict) -> None:
    loader = DataLoader(ROWS, **options)
    assert passes(prepared(loader)) == passes(loader)


def test_zipped_loaders_draw_in_the_bare_order_too() -> None:
    def zipped(prepare):
        torch.manual_seed(3)
        pair = [prepare(DataLoader(ROWS, batch_size=4, shuffle=True)) for _ in range(2)]
        return [(a[0].tolist(), b[0].tolist()) for a, b in zip(*pair, strict=True)]

    assert zipped(prepared) == zipped(lambda loader: loader)


def test_a_shuffling_generator_of_one_s_own_is_used_as_it_is() -> None:
    def order(prepare):
        generator = torch.Generator().manual_seed(11)
        return passes(prepare(DataLoader(ROWS, batch_size=3, shuffle=True, generator=generator)))

    assert order(prepared) == order(lambda loader: loader)


def test_a_prepared_loader_is_still_that_dataloader() -> None:
    plain = DataLoader(ROWS, batch_size=4, drop_last=True, num_workers=0)
    loader = prepared(plain)
    assert isinstance(loader, DataLoader)
    assert loader.dataset is ROWS
    assert loader.batch_size == 4
    assert loader.drop_last is True
    assert loader.collate_fn is plain.collate_fn
    assert loader.sampler is plain.sampler
    assert len(loader) == 2
    assert not hasattr(loader, "no_such_thing")


def test_the_last_batch_is_known_while_it_is_processed() -> None:
    for plain, length in (
        (DataLoader(ROWS, batch_size=4), 3),
        (DataLoader(Stream(), batch_size=2), 3),
        (DataLoader(Stream(), batch_size=None), 5),
    ):
        loader = prepared(plain)
        said = []
        for _ in loader:
            said.append(loader.passes.current.is_last)
        assert said == [False] * (length - 1) + [True]
        assert loader.passes.current is None


def test_position_epoch_and_samples_are_known() -> None:
    loader = prepared(DataLoader(ROWS, batch_size=4))
    for epoch in range(2):
        for taken, _ in enumerate(loader, start=1):
            one = loader.passes.current
            assert (one.epoch, one.taken, one.num_batches) == (epoch, taken, 3)
            assert one.left == 3 - taken + 1
    assert loader.samples == 20


def test_breaking_out_of_a_loop_leaves_nothing_behind() -> None:
    loader = prepared(DataLoader(ROWS, batch_size=2))
    for _ in loader:
        break
    assert loader.passes.active == []
    assert loader.epoch == 1  # a pass that was broken off was a pass


def test_an_inner_loop_gives_the_outer_one_back() -> None:
    outer = prepared(DataLoader(ROWS, batch_size=5))
    inner = prepare_loader(DataLoader(ROWS, batch_size=2), World.alone(), passes=outer.passes)
    for _ in outer:
        for _ in inner:
            assert outer.passes.current.loader is inner
        assert outer.passes.current.loader is outer


def test_set_epoch_makes_the_order_a_function_of_the_epoch() -> None:
    torch.manual_seed(0)
    loader = prepared(DataLoader(ROWS, batch_size=10, shuffle=True))
    orders = []
    for epoch in (0, 1, 0):
        loader.set_epoch(epoch)
        orders.append(next(iter(loader))[0].tolist())
    assert orders[0] == orders[2] != orders[1]


def test_set_epoch_reaches_a_batch_sampler_and_a_dataset() -> None:
    class Rotating:
        epoch = 0

        def __iter__(self):
            return iter([[(i + self.epoch) % 4] for i in range(4)])

        def __len__(self):
            return 4

        def set_epoch(self, epoch):
            self.epoch = epoch

    class Dataset(TensorDataset):
        def set_epoch(self, epoch):
            self.told = epoch

    dataset = Dataset(torch.arange(4))
    loader = prepared(DataLoader(dataset, batch_sampler=Rotating()))
    loader.set_epoch(2)
    assert [batch[0].item() for batch in loader] == [2, 3, 0, 1]
    assert dataset.told == 2


def test_a_sampler_of_one_s_own_may_be_told_the_epoch_directly() -> None:
    class Rotating(torch.utils.data.Sampler):
        epoch = 0

        def __iter__(self):
            return iter([(i + self.epoch) % 4 for i in range(4)])

        def __len__(self):
            return 4

    sampler = Rotating()
    loader = prepared(DataLoader(torch.arange(4), batch_size=4, sampler=sampler))
    sampler.epoch = 1
    assert next(iter(loader)).tolist() == [1, 2, 3, 0]


def test_persistent_workers_serve_pass_after_pass() -> None:
    plain = DataLoader(ROWS, batch_size=4, num_workers=1, persistent_workers=True)
    loader = prepared(plain)
    assert [len(list(loader)) for _ in range(2)] == [3, 3]
    del loader
    gc.collect()


def test_a_loader_for_another_number_of_ranks_is_refused() -> None:
    sampler = torch.utils.data.DistributedSampler(ROWS, num_replicas=4, rank=0)
    with pytest.raises(ConfigError) as error:
        prepared(DataLoader(ROWS, sampler=sampler))
    assert "deals to 4 ranks, but 1 read data" in error.value.what
    assert "plain DataLoader" in error.value.fix


def test_a_prepared_loader_does_not_travel() -> None:
    with pytest.raises(RuntimeMisuse) as error:
        pickle.dumps(prepared(DataLoader(ROWS)))
    assert "prepared DataLoader cannot travel" in error.value.what
    assert "inside the function that you launch" in error.value.fix


def test_batches_are_moved_whatever_they_are_made_of() -> None:
    Pair = namedtuple("Pair", ["x", "name"])
    meta = torch.device("meta")
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    moved = to_device(Pair({"a": [torch.ones(1)], "packed": packed}, "text"), meta)
    assert type(moved) is Pair
    assert moved.name == "text"
    assert moved.x["a"][0].device == meta
    assert moved.x["packed"].data.device == meta
    assert moved.x["packed"].batch_sizes.device.type == "cpu"


def test_a_loader_moves_batches_only_when_asked() -> None:
    elsewhere = World.alone("meta")
    plain = DataLoader(ROWS, batch_size=5)
    assert next(iter(prepare_loader(plain, elsewhere)))[0].device.type == "meta"
    kept = prepare_loader(plain, elsewhere, put_on_device=False)
    assert next(iter(kept))[0].device.type == "cpu"


def test_rows_of_a_batch_are_found_whatever_its_shape() -> None:
    assert num_rows(torch.zeros(3, 2)) == 3
    assert num_rows([torch.zeros(4), torch.zeros(4, 2)]) == 4
    assert num_rows({"x": torch.zeros(5)}) == 5
    assert num_rows(["a", "b"]) == 2
    assert num_rows(None) == 0

"""Skipping the first batches of a pass: views of prepared loaders, and plain loaders."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from notebook_accel import Accelerator, notebook_launcher, skip_first_batches
from notebook_accel.errors import ConfigError


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(7))


class SizedStream(Stream):
    def __len__(self):
        return 7


def read(loader):
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in loader]


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(range(7), batch_size=2),
        lambda: DataLoader(range(7), batch_size=2, num_workers=1),
        lambda: DataLoader(range(7), batch_size=None),
        lambda: DataLoader(Stream(), batch_size=2),
        lambda: DataLoader(Stream(), batch_size=None),
        lambda: DataLoader(Stream(), batch_size=2, num_workers=2),
    ],
)
def test_a_plain_loader_begins_later_and_the_given_one_stays_as_it_was(make) -> None:
    loader = make()
    whole = read(loader)
    for count in (0, 1, 2, 50):
        rest = read(skip_first_batches(loader, count))
        if loader.num_workers == 2:  # two workers with one stream each: in their turns
            assert sorted(map(str, rest)) == sorted(map(str, whole[count:]))
        else:
            assert rest == whole[count:]
    assert read(loader) == whole


def test_lengths_are_never_negative() -> None:
    for data in (range(7), SizedStream()):
        assert [len(skip_first_batches(DataLoader(data, 2), n)) for n in (0, 1, 4, 9)] == [
            4,
            3,
            0,
            0,
        ]


def test_a_skipped_plain_loader_can_be_prepared() -> None:
    loader = DataLoader(range(7), batch_size=2, shuffle=False)
    prepared = Accelerator(cpu=True).prepare(skip_first_batches(loader, 1))
    assert read(prepared) == [[2, 3], [4, 5], [6]]
    assert (prepared.batch_size, len(prepared)) == (2, 3)
    sampler = BatchSampler(SequentialSampler(range(7)), 2, False)
    skipped = skip_first_batches(DataLoader(range(7), batch_sampler=sampler), 2)
    assert skipped.batch_sampler.drop_last is False
    assert not hasattr(skipped.batch_sampler, "no_such_thing")


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        skip_first_batches(DataLoader(range(3)), -1)
    assert "num_batches=-1" in error.value.what
    assert "0 or more" in error.value.fix


def skips():
    accelerator = Accelerator()
    loader = accelerator.prepare(DataLoader(range(12), batch_size=2))
    one, ten = (accelerator.skip_first_batches(loader, n) for n in (1, 10))
    said = {
        "lengths": [len(one), len(ten)],
        "one": read(one),
        "ten": read(ten),
        "original": read(loader),
        "epoch": loader.epoch,
    }
    thirteen = accelerator.prepare(DataLoader(range(13), batch_size=2))
    said["gathered"] = [
        i
        for batch in accelerator.skip_first_batches(thirteen, 1)
        for i in accelerator.gather_for_metrics(batch).tolist()
    ]
    shuffled = accelerator.prepare(DataLoader(range(12), batch_size=1, shuffle=True))
    torch.manual_seed(0)
    whole = [read(shuffled) for _ in range(3)]
    torch.manual_seed(0)
    said["shuffled"] = [
        read(accelerator.skip_first_batches(shuffled, 2)) == whole[0][2:],
        read(shuffled) == whole[1],
        read(skip_first_batches(shuffled, 2)) == whole[2][2:],
    ]
    positions = []
    for _ in one:
        at = accelerator._passes.current
        positions.append((at.taken, at.num_batches, at.is_last))
    said["positions"] = positions
    return said


def test_two_ranks_skip_their_own_batches_and_metrics_know_the_end() -> None:
    """DL16 and SV05."""
    run = notebook_launcher(skips, (), 2, device="cpu")
    first, second = run[0], run[1]
    assert first["lengths"] == [2, 0]
    assert (first["one"], second["one"]) == ([[4, 5], [8, 9]], [[6, 7], [10, 11]])
    assert first["ten"] == second["ten"] == []
    assert first["original"] == [[0, 1], [4, 5], [8, 9]]
    assert first["epoch"] == 3  # a pass over a view is the loader's pass
    assert first["gathered"] == list(range(4, 13))
    assert first["shuffled"] == [True, True, True]
    assert first["positions"] == [(2, 3, False), (3, 3, True)]

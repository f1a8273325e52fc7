"""A loader that is stopped and resumed goes on as if it had never been stopped."""

from __future__ import annotations

import io
import random

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from notebook_accel import notebook_launcher
from notebook_accel.config.loading import DataLoaderConfiguration
from notebook_accel.data.loader import PreparedLoader
from notebook_accel.data.prepare import prepare_loader
from notebook_accel.data.randomness import restore, snapshot
from notebook_accel.ranks.world import World

ROWS = TensorDataset(torch.arange(10))


class ByPython(torch.utils.data.Sampler):
    def __len__(self):
        return 10

    def __iter__(self):
        return iter(random.sample(range(10), 10))


class ShuffledBatches:
    def __iter__(self):
        batches = [[2 * i, 2 * i + 1] for i in range(5)]
        random.shuffle(batches)
        return iter(batches)

    def __len__(self):
        return 5


class Buckets(BatchSampler):
    """Shuffles batches of shuffled samples."""

    def __iter__(self):
        batches = list(super().__iter__())
        random.shuffle(batches)
        return iter(batches)


class OneByOne(torch.utils.data.Sampler):
    """Draws each index when it is asked for it."""

    def __len__(self):
        return 10

    def __iter__(self):
        for _ in range(10):
            yield random.randrange(10)


class RandomStream(IterableDataset):
    def __iter__(self):
        return iter([torch.tensor(i) for i in torch.randperm(10).tolist()])


LOADERS = {
    "shuffled": lambda: DataLoader(ROWS, batch_size=2, shuffle=True),
    "in order": lambda: DataLoader(ROWS, batch_size=2),
    "workers": lambda: DataLoader(ROWS, batch_size=2, shuffle=True, num_workers=1),
    "own generator": lambda: DataLoader(
        ROWS, batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(5)
    ),
    "singly": lambda: DataLoader(ROWS, batch_size=None, shuffle=True),
    "replacement": lambda: DataLoader(ROWS, 2, sampler=RandomSampler(ROWS, True, 9)),
    "weighted": lambda: DataLoader(ROWS, 2, sampler=WeightedRandomSampler([1.0] * 10, 10)),
    "subset": lambda: DataLoader(ROWS, 2, sampler=SubsetRandomSampler(range(7))),
    "by python": lambda: DataLoader(ROWS, 2, sampler=ByPython()),
    "one by one": lambda: DataLoader(ROWS, 2, sampler=OneByOne()),
    "batch sampler": lambda: DataLoader(ROWS, batch_sampler=ShuffledBatches()),
    "buckets": lambda: DataLoader(ROWS, batch_sampler=Buckets(RandomSampler(ROWS), 2, False)),
    "stream": lambda: DataLoader(RandomStream(), batch_size=2),
}


def run_ranks(function, num_processes):
    run = notebook_launcher(function, (), num_processes, device="cpu")
    return [run[rank] for rank in range(num_processes)]


def prepared(make) -> PreparedLoader:
    return prepare_loader(make(), World.alone())


def draws() -> list:
    """What the loop itself draws between batches."""
    return [torch.rand(1).item(), random.random()]


def walk(loader: DataLoader) -> list:
    return [[*map(str, torch.utils._pytree.tree_leaves(b)), *draws()] for b in loader]


def seed() -> None:
    torch.manual_seed(3)
    random.seed(3)


@pytest.mark.parametrize("stop", [1, 3, "end"])
@pytest.mark.parametrize("name", LOADERS)
def test_the_rest_of_a_pass_and_the_next_pass_are_those_of_the_unstopped_run(name, stop) -> None:
    seed()
    loader = prepared(LOADERS[name])
    whole = [walk(loader) for _ in range(3)]

    seed()
    loader = prepared(LOADERS[name])
    assert walk(loader) == whole[0]
    stop = len(whole[1]) if stop == "end" else stop
    seen = []
    for batch in loader:
        seen.append([*map(str, torch.utils._pytree.tree_leaves(batch)), *draws()])
        if len(seen) == stop:
            state, randomness = saved(loader.state_dict()), snapshot()
            break

    torch.manual_seed(99)
    resumed = prepared(LOADERS[name])
    resumed.load_state_dict(state)
    restore(randomness)
    assert seen + walk(resumed) == whole[1]
    assert walk(resumed) == whole[2]


def saved(state: dict) -> dict:
    """What a file gives back, without running code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_between_passes_the_state_is_that_of_the_next_epoch() -> None:
    loader = prepared(LOADERS["shuffled"])
    list(loader)
    state = loader.state_dict()
    assert (state["epoch"], state["taken"]) == (1, 0)
    other = prepared(LOADERS["shuffled"])
    other.load_state_dict(state)
    assert other.epoch == 1
    assert len(list(other)) == 5


def test_the_position_is_right_in_a_resumed_pass() -> None:
    loader = prepared(LOADERS["shuffled"])
    for taken, _ in enumerate(loader, start=1):
        if taken == 3:
            state = loader.state_dict()
    resumed = prepared(LOADERS["shuffled"])
    resumed.load_state_dict(state)
    said = []
    for _ in resumed:
        one = resumed.passes.current
        said.append((one.epoch, one.taken, one.num_batches, one.left, one.is_last))
    assert said == [(0, 4, 5, 2, False), (0, 5, 5, 1, True)]
    assert len(resumed) == 5
    assert resumed.samples == 10


def test_set_epoch_of_the_resumed_pass_keeps_its_position_and_of_another_does_not() -> None:
    orders: list = []
    torch.manual_seed(0)
    loader = prepared(LOADERS["shuffled"])
    for epoch in range(3):
        loader.set_epoch(epoch)
        orders.append([batch[0].tolist() for batch in loader])
    torch.manual_seed(0)
    loader = prepared(LOADERS["shuffled"])
    loader.set_epoch(0)
    list(loader)
    loader.set_epoch(1)
    for taken, _ in enumerate(loader, start=1):
        if taken == 3:
            state = loader.state_dict()
            break
    torch.manual_seed(50)
    loader = prepared(LOADERS["shuffled"])
    loader.load_state_dict(state)
    loader.set_epoch(1)
    assert [batch[0].tolist() for batch in loader] == orders[1][3:]
    loader.set_epoch(2)
    assert [batch[0].tolist() for batch in loader] == orders[2]
    loader.load_state_dict(state)
    loader.set_epoch(2)
    assert [batch[0].tolist() for batch in loader] == orders[2]


def test_skipping_in_a_resumed_pass_counts_from_its_start() -> None:
    """SV05: load_state and skip_first_batches together, as every script for Accelerate does."""
    torch.manual_seed(1)
    loader = prepared(LOADERS["shuffled"])
    whole = [[batch[0].tolist() for batch in loader] for _ in range(3)]
    torch.manual_seed(1)
    loader = prepared(LOADERS["shuffled"])
    list(loader)
    for taken, _ in enumerate(loader, start=1):
        if taken == 2:
            state, randomness = loader.state_dict(), snapshot()
            break
    loader = prepared(LOADERS["shuffled"])
    loader.load_state_dict(state)
    restore(randomness)
    view = loader.skipping(2)
    assert len(view) == 3
    assert [batch[0].tolist() for batch in view] == whole[1][2:]
    assert [batch[0].tolist() for batch in loader] == whole[2]


def stops_and_resumes():
    import random

    import torch
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler, WeightedRandomSampler

    from notebook_accel import Accelerator
    from notebook_accel.data.randomness import restore, snapshot

    accelerator = Accelerator(cpu=True)

    class ByPython(torch.utils.data.Sampler):
        def __len__(self):
            return 13

        def __iter__(self):
            return iter(random.sample(range(13), 13))

    class Buckets(BatchSampler):
        def __iter__(self):
            batches = list(super().__iter__())
            random.shuffle(batches)
            return iter(batches)

    makes = {
        "buckets": lambda: DataLoader(
            range(13), batch_sampler=Buckets(RandomSampler(range(13)), 2, False)
        ),
        "shuffled": lambda: DataLoader(range(13), batch_size=2, shuffle=True),
        "workers": lambda: DataLoader(range(13), batch_size=2, shuffle=True, num_workers=1),
        "weighted": lambda: DataLoader(range(13), 2, sampler=WeightedRandomSampler([1.0] * 13, 13)),
        "replacement": lambda: DataLoader(range(13), 2, sampler=RandomSampler(range(13), True, 13)),
        "python": lambda: DataLoader(range(13), 2, sampler=ByPython()),
    }
    wrong = []

    def gathered(batch):
        return [*accelerator.gather_for_metrics(batch).tolist(), torch.rand(1).item()]

    for name, make in makes.items():
        torch.manual_seed(0)
        random.seed(0)
        loader = accelerator.prepare(make())
        whole = [[gathered(batch) for batch in loader] for _ in range(2)]
        torch.manual_seed(0)
        random.seed(0)
        loader = accelerator.prepare(make())
        seen = []
        for batch in loader:
            seen.append(gathered(batch))
            if len(seen) == 2:
                state, randomness = loader.state_dict(), snapshot()
                break
        loader = accelerator.prepare(make())
        loader.load_state_dict(state)
        restore(randomness)
        if [*seen, *map(gathered, loader)] != whole[0]:
            wrong.append(f"{name}: the rest of the pass")
        if [gathered(batch) for batch in loader] != whole[1]:
            wrong.append(f"{name}: the next pass")
    return wrong


def test_two_ranks_resume_in_the_middle_of_a_pass() -> None:
    assert run_ranks(stops_and_resumes, 2) == [[], []]


def test_another_number_of_readers_goes_on_at_the_same_sample() -> None:
    def loader(rank, size):
        return prepare_loader(DataLoader(range(16), batch_size=2), World.alone(), rank, size)

    one = loader(0, 1)
    for taken, _ in enumerate(one, start=1):
        if taken == 4:
            state = one.state_dict()
    pair = [loader(rank, 2) for rank in range(2)]
    for half in pair:
        half.load_state_dict(state)
    assert [[batch.tolist() for batch in half] for half in pair] == [
        [[8, 9], [12, 13]],
        [[10, 11], [14, 15]],
    ]


@pytest.mark.parametrize(
    ("first", "then", "splits"),
    [
        ((1, 2), (2, 4), False),  # readers, batch size: more of both
        ((2, 4), (1, 8), False),  # one step is as many samples as before, on fewer readers
        ((2, 4), (4, 2), False),
        ((2, 4), (2, 2), False),
        ((2, 4), (4, 4), True),
        ((4, 4), (1, 4), True),
    ],
)
def test_a_pass_goes_on_at_the_same_sample_with_batches_of_another_size(
    first: tuple[int, int], then: tuple[int, int], splits: bool
) -> None:
    def loaders(size: int, batch_size: int) -> list[PreparedLoader]:
        source = DataLoader(range(32), batch_size=batch_size)
        loading = DataLoaderConfiguration(split_batches=splits)
        return [
            prepare_loader(source, World.alone(), rank, size, loading=loading)
            for rank in range(size)
        ]

    loader = loaders(*first)[0]
    step, states = loader.total_batch_size, []
    for taken, _ in enumerate(loader, start=1):
        if taken * step == 16:
            states.append(loader.state_dict())
    (state,) = states
    rest = []
    for one in loaders(*then):
        one.load_state_dict(state)
        rest += [sample for batch in one for sample in batch.tolist()]
    assert sorted(rest) == list(range(16, 32))

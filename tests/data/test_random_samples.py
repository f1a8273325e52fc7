"""Randomness of loaders on ranks: one order, augmentations apart, everything again next time."""

from __future__ import annotations

import random

import numpy
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from notebook_accel import Accelerator, DataLoaderConfiguration, notebook_launcher, set_seed


class Augmented(Dataset):
    """Each sample is its index and numbers drawn while it is loaded."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        drawn = [torch.rand(1).item(), random.random(), float(numpy.random.rand())]
        return torch.tensor([float(index), *drawn], dtype=torch.float64)


class Masking:
    """A collate function that draws, as those of masked language models do."""

    def __call__(self, samples):
        return torch.stack([*map(torch.tensor, samples)]).double() + torch.rand(1).double() / 2


def on_ranks(num_ranks, function, *args):
    run = notebook_launcher(function, args, num_ranks, device="cpu")
    return [run[rank] for rank in range(num_ranks)]


def on_two_ranks(function, *args):
    return on_ranks(2, function, *args)


def test_augmentations_differ_between_ranks_and_come_again_with_the_seed() -> None:
    """DL13: 0 workers, 1 worker and persistent workers; the shuffle stays shared."""
    options = {
        "0 workers": {},
        "1 worker": {"num_workers": 1},
        "persistent": {"num_workers": 1, "persistent_workers": True},
    }

    def read(name):
        accelerator = Accelerator()
        set_seed(3)
        loader = DataLoader(Augmented(), batch_size=2, shuffle=True, **options[name])
        loader = accelerator.prepare(loader)
        epochs = [torch.cat(list(loader)).tolist() for _ in range(2)]
        return epochs, torch.rand(1).item(), random.random()

    for name in options:
        first, again = on_ranks(3, read, name), on_ranks(3, read, name)
        assert first == again, name
        assert len({str(draws) for _, *draws in first}) == 1, name  # ranks go on drawing alike
        for epoch in range(2):
            indices = [row[0] for epochs, *_ in first for row in epochs[epoch]]
            assert sorted(indices) == list(range(12)), name
        for drawn in range(1, 4):
            numbers = [row[drawn] for epochs, *_ in first for epoch in epochs for row in epoch]
            assert len(set(numbers)) == len(numbers), f"{name}: column {drawn}"


def test_a_collate_function_draws_apart_too() -> None:
    def read():
        accelerator = Accelerator()
        set_seed(3)
        loader = accelerator.prepare(DataLoader(range(8), batch_size=2, collate_fn=Masking()))
        return [(batch % 1).unique().tolist() for batch in loader], torch.rand(1).item()

    (first, draw), (second, other_draw) = on_two_ranks(read)
    assert not set(map(tuple, first)) & set(map(tuple, second))
    assert draw == other_draw


def test_an_augmented_pass_resumes_with_the_same_numbers() -> None:
    def read():
        accelerator = Accelerator()
        set_seed(3)
        loader = accelerator.prepare(DataLoader(Augmented(), batch_size=1, shuffle=True))
        whole = []
        for batch in loader:
            whole.append(batch.tolist())
            if len(whole) == 2:
                state = loader.state_dict()
        set_seed(50)
        loader = accelerator.prepare(DataLoader(Augmented(), batch_size=1, shuffle=True))
        loader.load_state_dict(state)
        return whole[2:], [batch.tolist() for batch in loader]

    for rest, resumed in on_two_ranks(read):
        assert resumed == rest


def test_samplers_of_any_randomness_give_ranks_one_order() -> None:
    """DL02: also samplers and batch samplers driven by Python's random, or by numpy's."""

    class ByNumpy(torch.utils.data.Sampler):
        def __len__(self):
            return 8

        def __iter__(self):
            return iter(numpy.random.permutation(8).tolist())

    class Groups:
        """Draws the order of batches, and their lengths, by Python."""

        def __len__(self):
            return 4

        def __iter__(self):
            rows = random.sample(range(8), 8)
            cuts = sorted(random.sample(range(1, 8), 3))
            return iter([rows[a:b] for a, b in zip([0, *cuts], [*cuts, 8], strict=True)])

    class Buckets(torch.utils.data.BatchSampler):
        """A batch sampler over a random sampler that also shuffles its batches by Python."""

        def __iter__(self):
            batches = list(super().__iter__())
            random.shuffle(batches)
            return iter(batches)

    def read():
        accelerator = Accelerator()
        random.seed(accelerator.process_index)
        numpy.random.seed(accelerator.process_index)
        torch.manual_seed(accelerator.process_index)
        loaders = {
            "numpy": DataLoader(range(8), batch_size=2, sampler=ByNumpy()),
            "groups": DataLoader(range(8), batch_sampler=Groups()),
            "buckets": DataLoader(
                range(8), batch_sampler=Buckets(RandomSampler(range(8)), 2, False)
            ),
        }
        said = {}
        for name, loader in loaders.items():
            loader = accelerator.prepare(loader)
            said[name] = (
                [i for b in loader for i in accelerator.gather_for_metrics(b).tolist()],
                loader.set_epoch(1),
            )
        return said

    first, second = on_two_ranks(read)
    assert first == second
    for name, (seen, _) in first.items():
        assert sorted(seen) == list(range(8)), name


def test_an_endless_sampler_that_ranks_draw_apart_is_an_error_on_every_rank() -> None:
    class Endless:
        def __iter__(self):
            while True:
                yield [random.randrange(8), random.randrange(8)]

    def read(together):
        accelerator = Accelerator()
        random.seed(0 if together else accelerator.process_index)
        loader = accelerator.prepare(DataLoader(range(8), batch_sampler=Endless()))
        try:
            return [batch.tolist() for batch, _ in zip(loader, range(3), strict=False)]
        except RuntimeError as error:
            return str(error)

    first, second = on_two_ranks(read, True)
    random.seed(0)
    expected = [[random.randrange(8), random.randrange(8)] for _ in range(6)]
    assert [first, second] == [expected[0::2], expected[1::2]]
    for text in on_two_ranks(read, False):
        assert "Endless without len() gives ranks unlike orders" in text
        assert "set_seed" in text


def test_a_seedable_order_is_a_function_of_the_seed_and_the_epoch() -> None:
    """DL11 and E4: set_epoch obeyed; a pass that is broken off was a pass."""

    def orders(loader, count=2):
        return [[batch.tolist() for batch in loader] for _ in range(count)]

    def prepared(**options):
        config = DataLoaderConfiguration(use_seedable_sampler=True, **options)
        accelerator = Accelerator(cpu=True, dataloader_config=config)
        return accelerator.prepare(DataLoader(range(6), batch_size=2, shuffle=True))

    torch.manual_seed(5)
    loader = prepared(data_seed=42)
    before = torch.get_rng_state()
    first = orders(loader, 3)
    assert len({str(order) for order in first}) == 3
    torch.manual_seed(77)
    loader = prepared(data_seed=42)
    broken = [next(iter(loader)).tolist() for _ in range(3)]
    assert broken == [order[0] for order in first]
    loader.set_epoch(1)
    assert orders(loader) == first[1:]
    assert orders(prepared(data_seed=43)) != first[:2]
    set_seed(5)
    by_torch = orders(prepared())
    torch.rand(3)
    set_seed(5)
    assert orders(prepared()) == by_torch
    assert before.shape == torch.get_rng_state().shape


def test_ranks_seeded_apart_share_a_seedable_order() -> None:
    def read():
        accelerator = Accelerator(
            dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True)
        )
        torch.manual_seed(accelerator.process_index)
        loader = accelerator.prepare(DataLoader(range(8), batch_size=2, shuffle=True))
        return [i for batch in loader for i in accelerator.gather(batch).tolist()]

    first, second = on_two_ranks(read)
    assert first == second
    assert sorted(first) == list(range(8))


def test_set_epoch_counts_on_in_later_passes_and_reaches_batch_samplers_on_ranks() -> None:
    """DL10 and DL11."""

    class Rotating:
        epoch = 0

        def __len__(self):
            return 4

        def __iter__(self):
            return iter([[(i + self.epoch) % 4] for i in range(4)])

        def set_epoch(self, epoch):
            self.epoch = epoch

    def read():
        accelerator = Accelerator()
        rotating = accelerator.prepare(DataLoader(range(4), batch_sampler=Rotating()))
        seen = []
        for epoch in range(3):
            rotating.set_epoch(epoch)
            seen.append([batch.item() for batch in rotating])
        set_seed(0)
        loader = accelerator.prepare(DataLoader(range(6), batch_size=1, shuffle=True))
        orders = []
        for epoch in (0, 1, 0):
            loader.set_epoch(epoch)
            orders.append([batch.item() for batch in loader])
        loader.set_epoch(0)
        counted = [[batch.item() for batch in loader] for _ in range(2)]
        return seen, orders, counted

    (seen, orders, counted), _ = on_two_ranks(read)
    assert seen == [[0, 2], [1, 3], [2, 0]]
    assert orders[0] == orders[2] != orders[1]
    assert counted == orders[:2]


def test_rng_types_share_more_random_numbers_at_each_pass() -> None:
    def read(rng_types):
        accelerator = Accelerator(rng_types=rng_types)
        torch.manual_seed(accelerator.process_index)
        loader = accelerator.prepare(DataLoader(range(4), batch_size=1))
        drawn = []
        for _ in range(2):
            torch.manual_seed(accelerator.process_index)
            for _ in loader:
                pass
            drawn.append(torch.rand(1).item())
        return drawn

    first, second = on_two_ranks(read, ["torch", "generator"])
    assert first == second
    first, second = on_two_ranks(read, None)
    assert first[0] != second[0]


def test_workers_that_shuffle_a_stream_shuffle_it_alike_on_all_ranks() -> None:
    class Shuffled(IterableDataset):
        def __iter__(self):
            return iter(torch.randperm(8).tolist())

    def read():
        config = DataLoaderConfiguration(dispatch_batches=False)
        accelerator = Accelerator(dataloader_config=config)
        torch.manual_seed(accelerator.process_index)
        loader = accelerator.prepare(DataLoader(Shuffled(), batch_size=2, num_workers=1))
        return [i for batch in loader for i in batch.tolist()]

    first, second = on_two_ranks(read)
    assert sorted(first + second) == list(range(8))

"""Rank 0 reads for all: whole batches of anything, ends alike on all ranks, errors told to all."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, IterableDataset

from notebook_accel import Accelerator, DataLoaderConfiguration, notebook_launcher

Pair = namedtuple("Pair", ["x", "name"])


@dataclass
class Record:
    x: torch.Tensor
    name: str


class Stream(IterableDataset):
    def __init__(self, items, sized=False):
        self.items = items
        if sized:
            self.__class__ = SizedStream

    def __iter__(self):
        return iter(self.items)


class SizedStream(Stream):
    def __len__(self):
        return len(self.items)


def plain(one):
    """Plain values of a batch, whatever it is made of."""
    if isinstance(one, torch.Tensor):
        return one.tolist()
    if isinstance(one, dict):
        return {key: plain(value) for key, value in one.items()}
    if isinstance(one, Record):
        return ["record", plain(one.x), one.name]
    if hasattr(one, "_fields"):
        return [type(one).__name__, *map(plain, one)]
    if isinstance(one, (list, tuple)):
        return [plain(item) for item in one]
    return one


def on_two_ranks(function, *args):
    run = notebook_launcher(function, args, 2, device="cpu")
    return [run[rank] for rank in range(2)]


def test_batches_of_anything_come_as_a_plain_loader_gives_them() -> None:
    """DL04 and DL05: strings, None, dataclasses, named tuples, variable lengths, 0-d tensors."""
    lengths = [torch.arange(n) for n in (1, 2, 3, 4)]
    loaders = {
        "dicts": DataLoader(Stream([{"x": i, "s": str(i)} for i in range(4)]), batch_size=2),
        "strings": DataLoader(Stream(["a", "b", "c", "d"]), batch_size=2),
        "nothing": DataLoader(
            Stream([None] * 4), batch_size=2, collate_fn=lambda s: (None, len(s))
        ),
        "records": DataLoader(
            Stream([Record(torch.tensor(i), str(i)) for i in range(4)]), collate_fn=lambda s: s[0]
        ),
        "named": DataLoader(
            Stream([Pair(torch.tensor(i), str(i)) for i in range(4)]), batch_size=2
        ),
        "lengths": DataLoader(
            Stream(lengths), batch_size=1, collate_fn=lambda s: pad_sequence(s, batch_first=True)
        ),
        "scalar": DataLoader(
            Stream(range(4)), batch_size=2, collate_fn=lambda s: (torch.tensor(s), torch.tensor(7))
        ),
        "bools": DataLoader(Stream([True, False, True, True]), batch_size=2),
        "bfloat16": DataLoader(
            Stream(range(4)), batch_size=2, collate_fn=lambda s: torch.tensor(s).bfloat16()
        ),
        "empty tensor": DataLoader(
            Stream(range(4)), batch_size=2, collate_fn=lambda s: torch.zeros(0, 3)
        ),
    }
    expected = {name: [plain(batch) for batch in loader] for name, loader in loaders.items()}

    def read():
        accelerator = Accelerator()
        return {
            name: [plain(batch) for batch in accelerator.prepare(loader)]
            for name, loader in loaders.items()
        }

    ranks = on_two_ranks(read)
    for name, batches in expected.items():
        assert [said[name] for said in ranks] == [batches[0::2], batches[1::2]], name
    assert ranks[0]["dicts"] == [{"x": [0, 1], "s": ["0", "1"]}]
    assert ranks[1]["dicts"] == [{"x": [2, 3], "s": ["2", "3"]}]


def test_every_way_of_reading_counts_each_sample_once_and_ends_alike() -> None:
    """GM08 with it: streams, with and without length, dispatched and not."""
    ways = {
        f"{kind} {how} {options}": (kind, how, options)
        for kind in ("stream", "sized", "map", "workers")
        for how in (True, False)
        for options in ("", "split", "uneven", "drop_last", "batch_size=None")
    }

    def loader_of(kind, options):
        whole = "None" in options
        data = [torch.tensor([2 * i, 2 * i + 1]) for i in range(5)] if whole else list(range(9))
        if kind != "map":
            data = Stream(data, sized=kind == "sized")
        given = {} if whole else {"drop_last": options == "drop_last"}
        workers = 1 if kind == "workers" else 0
        return DataLoader(data, batch_size=None if whole else 2, num_workers=workers, **given)

    def read():
        said = {}
        for name, (kind, how, options) in ways.items():
            config = DataLoaderConfiguration(
                dispatch_batches=how,
                split_batches=options == "split",
                even_batches=options != "uneven",
            )
            accelerator = Accelerator(dataloader_config=config)
            loader = accelerator.prepare(loader_of(kind, options))
            seen, last, gathered = [], [], []
            for batch in loader:
                seen.append(batch.tolist())
                last.append(loader.end_of_dataloader)
                if options != "uneven":
                    gathered += accelerator.gather_for_metrics(batch).tolist()
            said[name] = seen, last, gathered
        return said

    ranks = on_two_ranks(read)
    for name, (_, _, options) in ways.items():
        (seen, last, gathered), (other, other_last, other_gathered) = (r[name] for r in ranks)
        assert gathered == other_gathered, name
        assert last == [False] * (len(seen) - 1) + [True], name
        assert other_last == [False] * (len(other) - 1) + [True], name
        if options == "uneven":
            assert (seen, other) == ([[0, 1], [4, 5], [8]], [[2, 3], [6, 7]]), name
        elif options == "drop_last":
            assert gathered == [0, 1, 2, 3, 4, 5, 6, 7], name
        elif options == "batch_size=None":
            assert gathered == list(range(10)), name
        else:
            assert gathered == list(range(9)), name
            assert len(seen) == len(other), name
        if options == "split":
            assert seen[0] + other[0] == [0, 1], name


def test_a_shuffled_dataset_can_be_dispatched_epoch_after_epoch() -> None:
    def read():
        accelerator = Accelerator(
            dataloader_config=DataLoaderConfiguration(dispatch_batches=True), split_batches=False
        )
        torch.manual_seed(accelerator.process_index)
        loader = accelerator.prepare(DataLoader(range(8), batch_size=2, shuffle=True))
        assert len(loader) == 2
        return [[i for batch in loader for i in batch.tolist()] for _ in range(2)]

    first, second = on_two_ranks(read)
    for epoch in range(2):
        assert sorted(first[epoch] + second[epoch]) == list(range(8))
    assert first[0] + second[0] != first[1] + second[1]


def test_what_reading_raises_is_raised_on_every_rank_and_no_rank_waits() -> None:
    class Broken(IterableDataset):
        def __iter__(self):
            yield from range(4)
            raise ValueError("row 4 is broken")

    class Odd(Exception):
        def __init__(self, one, two):
            super().__init__("cannot travel")
            self.file = open("/dev/null")  # noqa: SIM115

    class Worse(IterableDataset):
        def __iter__(self):
            raise Odd(1, 2)

    def read(data, collate):
        accelerator = Accelerator()
        loader = accelerator.prepare(DataLoader(data, batch_size=2, collate_fn=collate))
        try:
            for _ in loader:
                pass
        except Exception as error:
            return type(error).__name__, str(error)

    same = on_two_ranks(read, Broken(), None)
    assert same[0] == same[1] == ("ValueError", "row 4 is broken")
    own, told = on_two_ranks(read, Worse(), None)
    assert own == ("Odd", "cannot travel")
    assert told[0] == "RuntimeMisuse"
    assert "rank 0 could not read the next batch: Odd: cannot travel" in told[1]
    assert "your dataset or collate function" in told[1]
    for name, text in on_two_ranks(read, Stream(range(4)), lambda samples: lambda: samples):
        assert name == "RuntimeMisuse"
        assert "a batch cannot travel from rank 0" in text
        assert "dispatch_batches=False" in text


def test_large_batches_after_small_ones_arrive_whole() -> None:
    def read():
        accelerator = Accelerator()
        sizes = Stream([torch.full((n,), float(n)) for n in (1, 2, 3, 50_000, 1, 200_000)])
        return [(len(b), b.sum().item()) for b in accelerator.prepare(DataLoader(sizes, None))]

    first, second = on_two_ranks(read)
    assert first == [(1, 1.0), (3, 9.0), (1, 1.0)]  # rank 0's own do not travel
    assert second == [(2, 4.0), (50_000, 50_000.0**2), (200_000, 200_000.0**2)]


def test_a_dispatched_stream_resumes_in_the_middle_and_takes_skips() -> None:
    def read():
        accelerator = Accelerator()
        whole = [b.tolist() for b in accelerator.prepare(DataLoader(Stream(range(13)), 2))]
        loader = accelerator.prepare(DataLoader(Stream(range(13)), batch_size=2))
        for taken, _ in enumerate(loader, start=1):
            if taken == 2:
                state = loader.state_dict()
                break
        resumed = accelerator.prepare(DataLoader(Stream(range(13)), batch_size=2))
        resumed.load_state_dict(state)
        rest = [accelerator.gather_for_metrics(batch).tolist() for batch in resumed]
        view = accelerator.skip_first_batches(resumed, 1)
        return whole, rest, [batch.tolist() for batch in view]

    for whole, rest, skipped in on_two_ranks(read):
        assert rest == [[8, 9, 10, 11], [12]]
        assert skipped == whole[1:]


def test_a_loop_that_is_left_early_leaves_the_next_one_intact() -> None:
    def read():
        accelerator = Accelerator()
        loader = accelerator.prepare(DataLoader(Stream(range(12)), batch_size=2))
        for _ in loader:
            break
        return [batch.tolist() for batch in loader], len(accelerator._passes.active)

    first, second = on_two_ranks(read)
    assert first == ([[0, 1], [4, 5], [8, 9]], 0)
    assert second == ([[2, 3], [6, 7], [10, 11]], 0)


def test_an_empty_stream_is_over_at_once() -> None:
    def read():
        return list(Accelerator().prepare(DataLoader(Stream([]), batch_size=2)))

    assert on_two_ranks(read) == [[], []]

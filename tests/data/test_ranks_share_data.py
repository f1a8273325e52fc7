"""Real ranks read one loader: disjoint shares, one order, and metrics that count samples once."""

from __future__ import annotations

from torch.utils.data import DataLoader

from notebook_accel import notebook_launcher


def run_ranks(function, num_processes):
    run = notebook_launcher(function, (), num_processes, device="cpu")
    return [run[rank] for rank in range(num_processes)]


def reads_loaders():
    import random

    import torch
    from torch.utils.data import (
        DataLoader,
        DistributedSampler,
        IterableDataset,
        TensorDataset,
        WeightedRandomSampler,
    )

    from notebook_accel import Accelerator

    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    said = {}

    def read(loader, epochs=1):
        loader = accelerator.prepare(loader)
        return [batch.tolist() for _ in range(epochs) for batch in loader]

    items = torch.arange(8)
    said["five"] = read(DataLoader(range(5), batch_size=2))
    torch.manual_seed(rank)  # ranks seeded apart still share one order
    said["shuffled"] = read(DataLoader(items, batch_size=1, shuffle=True), epochs=2)
    generator = torch.Generator().manual_seed(100 + rank)
    own = DataLoader(items, batch_size=2, shuffle=True, generator=generator)
    said["own_generator"] = read(own)
    weighted = WeightedRandomSampler(torch.ones(8), 8, replacement=False)
    said["weighted"] = read(DataLoader(items, batch_size=2, sampler=weighted))

    class ByPython(torch.utils.data.Sampler):
        def __len__(self):
            return 8

        def __iter__(self):
            return iter(random.sample(range(8), 8))

    random.seed(rank)
    said["python"] = read(DataLoader(items, batch_size=2, sampler=ByPython()))
    distributed = DistributedSampler(items, shuffle=False)
    said["distributed"] = read(DataLoader(items, batch_size=2, sampler=distributed))
    ready = TensorDataset(torch.arange(8).view(4, 2))
    loader = accelerator.prepare(DataLoader(ready, batch_size=None))
    said["ready_made"] = [batch[0].tolist() for batch in loader]
    said["ready_made_len"] = len(loader)

    class Odd:
        batch_size, drop_last = 2, True

        def __iter__(self):
            return iter([[0, 1], [2, 3], [4, 5]])

    class Bare:
        def __iter__(self):
            return iter([[0, 1], [2, 3], [4, 5]])

    said["odd"] = read(DataLoader(items, batch_sampler=Odd()))
    said["bare"] = read(DataLoader(items, batch_sampler=Bare()))

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(5))

    said["stream"] = read(DataLoader(Stream(), batch_size=2))
    said["stream_workers"] = read(DataLoader(Stream(), batch_size=2, num_workers=1))
    said["stream_singly"] = read(DataLoader([torch.tensor(i) for i in range(5)], batch_size=None))
    return said


def test_two_ranks_read_disjoint_shares_in_one_order() -> None:
    """DL01, DL02, DL07 and DL08."""
    first, second = run_ranks(reads_loaders, 2)
    assert (first["five"], second["five"]) == ([[0, 1], [4, 0]], [[2, 3], [1, 2]])
    for name in ("shuffled", "own_generator", "weighted", "python", "distributed"):
        epochs = 2 if name == "shuffled" else 1
        together = sorted(i for said in (first, second) for batch in said[name] for i in batch)
        assert together == sorted([*range(8)] * epochs), name
    epoch = [said["shuffled"][:4] for said in (first, second)]
    assert epoch != [said["shuffled"][4:] for said in (first, second)]
    assert first["distributed"] == [[0, 2], [4, 6]]
    assert (first["ready_made"], second["ready_made"]) == ([[0, 1], [4, 5]], [[2, 3], [6, 7]])
    assert first["ready_made_len"] == 2
    assert (first["odd"], second["odd"]) == ([[0, 1]], [[2, 3]])
    assert (first["bare"], second["bare"]) == ([[0, 1], [4, 5]], [[2, 3], [0, 1]])
    for name in ("stream", "stream_workers"):
        assert (first[name], second[name]) == ([[0, 1], [4, 0]], [[2, 3], [1, 2]]), name
    assert (first["stream_singly"], second["stream_singly"]) == ([0, 2, 4], [1, 3, 0])


def order_of_a_shuffled_loader():
    import torch
    from torch.utils.data import DataLoader

    from notebook_accel import Accelerator

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(4)
    loader = accelerator.prepare(DataLoader(range(16), batch_size=2, shuffle=True))
    return [accelerator.gather_for_metrics(batch).tolist() for _ in range(2) for batch in loader]


def test_many_ranks_see_the_order_that_one_process_sees() -> None:
    flat = [
        [i for batch in run_ranks(order_of_a_shuffled_loader, n)[0] for i in batch] for n in (1, 4)
    ]
    assert flat[0] == flat[1]


def gathers_for_metrics():
    from collections import namedtuple

    import torch
    from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

    from notebook_accel import Accelerator

    accelerator = Accelerator(cpu=True)
    Pair = namedtuple("Pair", ["x", "y"])

    def listed(tree):
        if isinstance(tree, torch.Tensor):
            return tree.tolist()
        if isinstance(tree, dict):
            return {key: listed(value) for key, value in tree.items()}
        if isinstance(tree, (tuple, list)):
            return [listed(one) for one in tree]
        return tree

    def gathered(loader, make=lambda batch: batch):
        loader = accelerator.prepare(loader)
        return [listed(accelerator.gather_for_metrics(make(batch))) for batch in loader]

    strings = [f"s{i}" for i in range(5)]

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(5))

    class Custom:
        def __init__(self, batches):
            self.batches = batches

        def __iter__(self):
            return iter(self.batches)

    dicts = [{"t": f"t{i}", "x": i} for i in range(5)]
    said = {
        "tensors": gathered(DataLoader(range(5), batch_size=2)),
        "pairs": gathered(
            DataLoader(strings, batch_size=2), lambda batch: (batch, [x + "!" for x in batch])
        ),
        "strings": gathered(DataLoader(strings, batch_size=2)),
        "dicts": gathered(DataLoader(dicts, batch_size=2)),
        "named": gathered(DataLoader(range(5), batch_size=2), lambda b: Pair(b, b + 1)),
        "scalars": gathered(DataLoader(range(5), batch_size=2), lambda b: torch.tensor(1.0)),
        "two_d": gathered(
            DataLoader(range(5), batch_size=2), lambda b: b.view(-1, 1).expand(-1, 2)
        ),
        "stream": gathered(DataLoader(Stream(), batch_size=2)),
        "stream_workers": gathered(DataLoader(Stream(), batch_size=2, num_workers=1)),
        "custom": gathered(DataLoader(range(6), batch_sampler=Custom([[0, 1], [2, 3], [4, 5]]))),
        "uneven": gathered(DataLoader(range(6), batch_sampler=Custom([[0, 1, 2], [3], [4, 5]]))),
        "ready_made": gathered(
            DataLoader([torch.arange(2) + 2 * i for i in range(3)], batch_size=None)
        ),
        "distributed": gathered(
            DataLoader(
                range(5),
                batch_size=2,
                sampler=DistributedSampler(
                    range(5), accelerator.num_processes, accelerator.process_index, shuffle=False
                ),
            )
        ),
        "number": accelerator.gather_for_metrics(1.5),
        "nothing": accelerator.gather_for_metrics(None),
    }
    train = accelerator.prepare(DataLoader(range(5), batch_size=1))
    evaluation = accelerator.prepare(DataLoader(range(3), batch_size=1))
    said["nested"], said["inner"] = [], []
    for step, batch in enumerate(train):
        if step == 1:
            for inner in evaluation:
                said["inner"] += accelerator.gather_for_metrics(inner).tolist()
        said["nested"].append(accelerator.gather_for_metrics(batch).tolist())
    short = accelerator.prepare(DataLoader(range(5), batch_size=1))
    long = accelerator.prepare(DataLoader(range(8), batch_size=1))
    said["short"], said["long"] = [], []
    for a, b in zip(short, long, strict=False):
        said["short"].append(accelerator.gather_for_metrics(a).tolist())
        said["long"].append(accelerator.gather_for_metrics(b).tolist())
    return said


def test_every_sample_is_gathered_exactly_once() -> None:
    """GM02, GM03, GM05, GM08 and GM09."""
    said, other = run_ranks(gathers_for_metrics, 2)
    assert said == other
    assert said["tensors"] == [[0, 1, 2, 3], [4]]
    assert said["pairs"] == [
        [["s0", "s1", "s2", "s3"], ["s0!", "s1!", "s2!", "s3!"]],
        [["s4"], ["s4!"]],
    ]
    assert said["strings"] == [["s0", "s1", "s2", "s3"], ["s4"]]
    assert said["dicts"] == [
        {"t": ["t0", "t1", "t2", "t3"], "x": [0, 1, 2, 3]},
        {"t": ["t4"], "x": [4]},
    ]
    assert said["named"] == [[[0, 1, 2, 3], [1, 2, 3, 4]], [[4], [5]]]
    assert said["scalars"] == [[1, 1], [1, 1]]  # one a rank: never cut
    assert said["two_d"] == [[[0, 0], [1, 1], [2, 2], [3, 3]], [[4, 4]]]
    assert said["stream"] == said["stream_workers"] == said["tensors"]
    assert said["custom"] == [[0, 1, 2, 3], [4, 5]]
    assert said["uneven"] == [[0, 1, 2, 3], [4, 5]]
    assert said["ready_made"] == [[0, 1, 2, 3], [4, 5]]
    assert sorted(i for batch in said["distributed"] for i in batch) == [0, 1, 2, 3, 4]
    assert (said["number"], said["nothing"]) == ([1.5, 1.5], [None, None])
    assert said["nested"] == [[0, 1], [2, 3], [4]]
    assert said["inner"] == [0, 1, 2]
    assert said["short"] == [[0, 1], [2, 3], [4]]
    assert said["long"] == [[0, 1], [2, 3], [4, 5]]


def test_one_process_gathers_in_the_same_shapes() -> None:
    (said,) = run_ranks(gathers_for_metrics, 1)
    assert said["tensors"] == [[0, 1], [2, 3], [4]]
    assert said["dicts"][-1] == {"t": ["t4"], "x": [4]}
    assert said["scalars"] == [[1], [1], [1]]
    assert (said["number"], said["nothing"]) == ([1.5], [None])


def starves_a_rank():
    from torch.utils.data import DataLoader

    from notebook_accel.config.loading import DataLoaderConfiguration
    from notebook_accel.data.prepare import prepare_loader
    from notebook_accel.ranks.world import World

    world = World.join(cpu=True)
    loader = prepare_loader(
        DataLoader(range(1), batch_size=4),
        world,
        world.rank,
        world.size,
        loading=DataLoaderConfiguration(even_batches=False),
    )
    return [len(loader), [batch.tolist() for batch in loader]]


def test_without_even_batches_a_rank_may_get_nothing() -> None:
    assert run_ranks(starves_a_rank, 2) == [[1, [[0]]], [0, []]]


def reads_tiny_datasets():
    from torch.utils.data import DataLoader

    from notebook_accel import Accelerator, DataLoaderConfiguration

    said = {}
    for even in (True, False):
        config = DataLoaderConfiguration(even_batches=even)
        accelerator = Accelerator(dataloader_config=config)
        for num in (1, 2, 3):
            loader = accelerator.prepare(DataLoader(range(num), batch_size=4))
            seen, gathered = [], []
            for batch in loader:
                seen += batch.tolist()
                gathered += accelerator.gather_for_metrics(batch).tolist() if even else []
            said[f"{num} {even}"] = seen, gathered
    return said


def test_datasets_smaller_than_a_batch_reach_every_rank() -> None:
    """DL14."""
    first, second = run_ranks(reads_tiny_datasets, 2)
    for num in (1, 2, 3):
        for said in (first, second):
            seen, gathered = said[f"{num} True"]
            assert len(seen) == 4
            assert set(seen) <= set(range(num))
            assert gathered == list(range(num))
        assert first[f"{num} False"] == (list(range(num)), [])
        assert second[f"{num} False"] == ([], [])


def test_a_loader_can_be_walked_inside_a_walk_over_itself() -> None:
    def read():
        from notebook_accel import Accelerator

        accelerator = Accelerator()
        seen = {}
        for name, options in {"in order": {}, "shuffled": {"shuffle": True}}.items():
            loader = accelerator.prepare(DataLoader(range(10), batch_size=2, **options))
            outer, inner = [], []
            for batch in loader:
                outer += accelerator.gather_for_metrics(batch).tolist()
                walk = [i for b in loader for i in accelerator.gather_for_metrics(b).tolist()]
                inner.append(sorted(walk))
            seen[name] = sorted(outer), inner
            pairs = [(a.tolist(), b.tolist()) for a, b in zip(loader, loader, strict=True)]
            seen[name] += (len(pairs), name == "in order" and all(a == b for a, b in pairs))
        return seen

    for num_processes in (1, 2):
        steps = -(-5 // num_processes)
        for said in run_ranks(read, num_processes):
            assert said["in order"] == ([*range(10)], [[*range(10)]] * steps, steps, True)
            assert said["shuffled"][:3] == ([*range(10)], [[*range(10)]] * steps, steps)


def test_ranks_that_read_the_same_data_get_the_same_batches() -> None:
    """Two readers of two ranks each, as under tensor parallelism."""

    def read():
        from notebook_accel import DataLoaderConfiguration
        from notebook_accel.data.prepare import prepare_loader
        from notebook_accel.ranks.world import World

        world = World.join(cpu=True)
        seen = []
        for dispatch in (False, True):
            loading = DataLoaderConfiguration(dispatch_batches=dispatch)
            source = DataLoader(range(10), batch_size=2)
            loader = prepare_loader(source, world, world.rank // 2, 2, loading=loading)
            seen.append([batch.tolist() for batch in loader])
        return seen

    expected = [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [0, 1]]]
    for rank, seen in enumerate(run_ranks(read, 4)):
        assert seen == [expected[rank // 2]] * 2

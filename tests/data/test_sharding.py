"""Streams that shard themselves: each rank reads its own files, and all take equally many steps."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from notebook_accel import Accelerator, DataLoaderConfiguration, notebook_launcher


class Files(IterableDataset):
    """Like Hugging Face's: some files, of which ``shard`` keeps every n-th."""

    def __init__(self, files):
        self.files = files
        self.epoch = 0

    @property
    def num_shards(self):
        return len(self.files)

    def shard(self, num_shards, index):
        return Files(self.files[index::num_shards])

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for file in self.files:
            yield from (row + 100 * self.epoch for row in file)


FILES = [[0, 1, 2], [3, 4], [5, 6, 7, 8, 9, 10], []]


def read(files, batch_size=2, even=True, dispatch=False, stop=None):
    config = DataLoaderConfiguration(dispatch_batches=dispatch, even_batches=even)
    accelerator = Accelerator(dataloader_config=config)
    loader = accelerator.prepare(DataLoader(Files(files), batch_size=batch_size))
    if stop is not None:
        for taken, _ in enumerate(loader, start=1):
            if taken == stop:
                state = loader.state_dict()
                break
        loader.load_state_dict(state)
    seen, ends, gathered = [], [], []
    try:
        for batch in loader:
            seen.append(torch.as_tensor(batch).tolist())
            ends.append(loader.end_of_dataloader)
            if even:
                gathered.append(sorted(accelerator.gather_for_metrics(batch).tolist()))
    except RuntimeError as error:
        return str(error)
    loader.set_epoch(1)
    return seen, ends, gathered, [i for batch in loader for i in batch.tolist()]


def on_two_ranks(*args):
    run = notebook_launcher(read, args, 2, device="cpu")
    return [run[rank] for rank in range(2)]


def test_each_rank_reads_its_own_files_and_metrics_count_each_row_once() -> None:
    (seen, ends, gathered, later), (other, other_ends, other_gathered, _) = on_two_ranks(FILES)
    assert seen == [[0, 1], [2, 5], [6, 7], [8, 9], [10]]
    assert other == [[3, 4], [3, 4], [3, 4], [3, 4], [3, 4]]
    assert ends == other_ends == [False] * 4 + [True]
    assert gathered == other_gathered == [[0, 1, 3, 4], [2, 5], [6, 7], [8, 9], [10]]
    assert later == [row + 100 for batch in seen for row in batch]


def test_without_even_batches_ranks_end_when_their_files_do() -> None:
    (seen, ends, *_), (other, other_ends, *_) = on_two_ranks(FILES, 2, False)
    assert seen == [[0, 1], [2, 5], [6, 7], [8, 9], [10]]
    assert other == [[3, 4]]
    assert (ends[-1], other_ends) == (True, [True])


def test_a_rank_without_any_row_is_an_error_on_every_rank() -> None:
    first, second = on_two_ranks([[0, 1], []])
    assert first == second
    assert "rank 1 has an empty shard" in first
    assert "dispatch_batches=True" in first


def test_too_few_files_are_read_by_all_and_dealt() -> None:
    (seen, *_), (other, *_) = on_two_ranks([[0, 1, 2, 3]])
    assert (seen, other) == ([[0, 1]], [[2, 3]])


def test_by_default_rank_0_reads_all_files() -> None:
    (seen, *_), (other, *_) = on_two_ranks(FILES, 2, True, None)
    assert (seen[0], other[0]) == ([0, 1], [2, 3])


def test_a_pass_over_own_files_resumes() -> None:
    (seen, _, gathered, _), (other, *_) = on_two_ranks(FILES, 2, True, False, 2)
    assert seen == [[6, 7], [8, 9], [10]]
    assert other == [[3, 4]] * 3
    assert gathered == seen


def test_own_files_resume_by_the_state_of_their_stream() -> None:
    pytest.importorskip("torchdata.stateful_dataloader")

    reads: list[int] = []

    class Remembering(Files):
        at = 0

        def __iter__(self):
            rows = [row for file in self.files for row in file]
            at, self.at = self.at, 0
            for number in range(at, len(rows)):
                self.at = number + 1
                reads.append(rows[number])
                yield rows[number]

        def shard(self, num_shards, index):
            return Remembering(self.files[index::num_shards])

        def state_dict(self):
            return {"at": self.at}

        def load_state_dict(self, state):
            self.at = state["at"]

    def resume():
        config = DataLoaderConfiguration(dispatch_batches=False, use_stateful_dataloader=True)
        accelerator = Accelerator(dataloader_config=config)
        loader = accelerator.prepare(DataLoader(Remembering(FILES), batch_size=2))
        for taken, _ in enumerate(loader, start=1):
            if taken == 2:
                state = loader.state_dict()
                break
        loader = accelerator.prepare(DataLoader(Remembering(FILES), batch_size=2))
        loader.load_state_dict(state)
        reads.clear()
        seen = [(b.tolist(), accelerator.gather_for_metrics(b).tolist()) for b in loader]
        return seen, reads

    run = notebook_launcher(resume, (), 2, device="cpu")
    assert run[0][0] == [([6, 7], [6, 7]), ([8, 9], [8, 9]), ([10], [10])]
    assert run[1][0] == [([3, 4], [6, 7]), ([3, 4], [8, 9]), ([3, 4], [10])]
    assert run[0][1] == [0, 1, 6, 7, 8, 9, 10]  # its first batch, and the rest

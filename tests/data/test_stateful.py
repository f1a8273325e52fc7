"""torchdata's StatefulDataLoader under prepare: a stream with a state is not read again."""

from __future__ import annotations

import sys

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from notebook_accel import Accelerator, DataLoaderConfiguration, notebook_launcher
from notebook_accel.errors import MissingPackage

torchdata = pytest.importorskip("torchdata.stateful_dataloader")


class Counted(IterableDataset):
    """A stream that knows where it is, and counts what was asked of it."""

    def __init__(self):
        self.at = 0
        self.read = 0

    def __iter__(self):
        at, self.at = self.at, 0
        for i in range(at, 13):
            self.read += 1
            self.at = i + 1
            yield i
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Forgetful(IterableDataset):
    def __iter__(self):
        return iter(range(13))


def config(dispatch=None):
    return DataLoaderConfiguration(use_stateful_dataloader=True, dispatch_batches=dispatch)


def stopped(accelerator, dataset, **options):
    """The state after two batches, and the batches that were to come."""
    loader = accelerator.prepare(DataLoader(dataset, batch_size=2, **options))
    rest = []
    for taken, batch in enumerate(loader, start=1):
        if taken == 2:
            state = loader.state_dict()
        if taken > 2:
            rest.append(batch.tolist())
    return state, rest


def test_skipping_by_hand_in_a_resumed_stream_counts_from_the_start_of_its_pass() -> None:
    accelerator = Accelerator(cpu=True, dataloader_config=config())
    state, rest = stopped(accelerator, Counted())
    for count, reads in ((2, 9), (3, 13)):  # the state's own place, and another
        dataset = Counted()
        loader = accelerator.prepare(DataLoader(dataset, batch_size=2))
        loader.load_state_dict(state)
        view = accelerator.skip_first_batches(loader, count)
        assert [batch.tolist() for batch in view] == rest[count - 2 :]
        assert dataset.read == reads


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_with_a_state_goes_on_without_being_read_again(workers: int) -> None:
    accelerator = Accelerator(cpu=True, dataloader_config=config())
    state, rest = stopped(accelerator, Counted(), num_workers=workers)
    dataset = Counted()
    loader = accelerator.prepare(DataLoader(dataset, batch_size=2, num_workers=workers))
    loader.load_state_dict(state)
    before = torch.get_rng_state()
    assert [batch.tolist() for batch in loader] == rest
    assert torch.equal(before, torch.get_rng_state())
    if not workers:
        assert dataset.read == 9
    assert len(list(loader)) == 7


def test_the_person_s_own_stateful_loader_is_kept_as_one() -> None:
    accelerator = Accelerator(cpu=True)
    for dataset in (range(13), Forgetful(), Counted()):

        def make(dataset=dataset):
            return torchdata.StatefulDataLoader(dataset, batch_size=2)

        loader = accelerator.prepare(make())
        whole = [batch.tolist() for batch in loader]
        assert whole == [[*range(i, min(i + 2, 13))] for i in range(0, 13, 2)]
        for taken, _ in enumerate(loader, start=1):
            if taken == 3:
                state = loader.state_dict()
                break
        resumed = accelerator.prepare(make())
        resumed.load_state_dict(state)
        assert [batch.tolist() for batch in resumed] == whole[3:]


def test_two_ranks_resume_their_stream() -> None:
    def resume(dispatch):
        accelerator = Accelerator(dataloader_config=config(dispatch))
        state, rest = stopped(accelerator, Counted())
        dataset = Counted()
        loader = accelerator.prepare(DataLoader(dataset, batch_size=2))
        loader.load_state_dict(state)
        seen, gathered = [], []
        for batch in loader:
            seen.append(batch.tolist())
            gathered += accelerator.gather_for_metrics(batch).tolist()
        return seen == rest, gathered, dataset.read

    for dispatch, reads in ((True, [9, 0]), (False, [9, 9])):
        run = notebook_launcher(resume, (dispatch,), 2, device="cpu")
        assert [run[rank] for rank in range(2)] == [(True, [*range(8, 13)], n) for n in reads]


def test_without_torchdata_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchdata", None)
    monkeypatch.setitem(sys.modules, "torchdata.stateful_dataloader", None)
    with pytest.raises(MissingPackage) as error:
        Accelerator(cpu=True, dataloader_config=config()).prepare(DataLoader(Forgetful()))
    assert "torchdata, which is not installed" in error.value.what
    assert "notebook-accel[stateful]" in error.value.fix

"""What an Accelerator's loaders read: its settings, uneven ends, and gathering too late."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from notebook_accel import Accelerator, DataLoaderConfiguration, GuardRail, notebook_launcher
from notebook_accel.errors import ConfigError


def on_two_ranks(function, *args):
    run = notebook_launcher(function, args, 2, device="cpu")
    return [run[rank] for rank in range(2)]


def test_settings_are_read_back_and_the_short_form_counts() -> None:
    given = DataLoaderConfiguration(even_batches=False, dispatch_batches=False, non_blocking=True)
    accelerator = Accelerator(split_batches=True, cpu=True, dataloader_config=given)
    assert accelerator.split_batches is True
    assert accelerator.dispatch_batches is False
    assert accelerator.even_batches is False
    assert accelerator.non_blocking is True
    assert accelerator.use_seedable_sampler is False
    assert accelerator.use_stateful_dataloader is False
    assert accelerator.rng_types == ["generator"]
    accelerator.even_batches = True
    assert accelerator.dataloader_config.even_batches is True
    assert (given.even_batches, given.split_batches) == (False, False)  # the person's own
    assert Accelerator(cpu=True).dataloader_config == DataLoaderConfiguration()


def test_a_seed_that_is_no_number_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        DataLoaderConfiguration(data_seed="42")
    assert "data_seed='42'" in error.value.what
    assert "data_seed=42" in error.value.fix


def test_unknown_random_numbers_are_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError) as error:
        Accelerator(cpu=True, rng_types=["dice"])
    assert "rng_types='dice'" in error.value.what
    assert "torch" in error.value.why


def test_split_batches_make_the_batch_size_that_of_all_ranks() -> None:
    def read():
        accelerator = Accelerator(split_batches=True)
        loader = accelerator.prepare(DataLoader(range(8), batch_size=4))
        return [batch.tolist() for batch in loader], len(loader), loader.total_batch_size

    first, second = on_two_ranks(read)
    assert first == ([[0, 1], [4, 5]], 2, 4)
    assert second == ([[2, 3], [6, 7]], 2, 4)


def test_a_batch_size_that_cannot_be_split_is_refused_on_every_rank() -> None:
    def read():
        try:
            Accelerator(split_batches=True).prepare(DataLoader(range(8), batch_size=3))
        except ConfigError as error:
            return str(error)

    for text in on_two_ranks(read):
        assert "split_batches with batch size 3 over 2 ranks" in text
        assert "a multiple of 2" in text


def trains_unevenly(skip: bool):
    """Linear(1, 1) over three items on two ranks, or over eight with one skipped on rank 1."""
    accelerator = Accelerator()
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.arange(8.0 if skip else 3.0)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, 1))
    steps = 0
    with accelerator.join_uneven_inputs([model], even_batches=False):
        for batch in loader:
            if skip and accelerator.process_index == 1 and batch.item() == 3:
                continue
            optimizer.zero_grad()
            accelerator.backward(model(batch.view(-1, 1)).square().mean())
            optimizer.step()
            steps += 1
    weight = accelerator.unwrap_model(model).weight.item()
    after = [batch.item() for batch in loader]
    total = accelerator.gather(torch.tensor([steps])).tolist()
    return steps, weight, after, total


def test_ranks_with_unlike_numbers_of_batches_train_together() -> None:
    """E5: over gloo too."""
    (steps, weight, after, total), (other_steps, other_weight, other_after, _) = on_two_ranks(
        trains_unevenly, False
    )
    assert (steps, other_steps) == (2, 1)
    assert total == [2, 1]
    assert weight == pytest.approx(other_weight)
    assert (after, other_after) == ([0, 2], [1, 0])  # even again after the block


def test_a_rank_may_skip_a_batch_inside_the_block() -> None:
    """DL17: the documented way to skip a bad batch on one rank."""
    (steps, weight, *_), (other_steps, other_weight, *_) = on_two_ranks(trains_unevenly, True)
    assert (steps, other_steps) == (4, 3)
    assert weight == pytest.approx(other_weight)


def test_one_process_joins_nothing() -> None:
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(DataLoader(range(3), batch_size=2))
    with accelerator.join_uneven_inputs([nn.Linear(1, 1)], even_batches=False):
        assert [batch.tolist() for batch in loader] == [[0, 1], [2]]


def test_gathering_once_after_the_loop_is_told_of_repeats() -> None:
    """GM06."""

    def read(num):
        accelerator = Accelerator()
        loader = accelerator.prepare(DataLoader(range(num), batch_size=2))
        rows = torch.cat(list(loader))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            accelerator.gather_for_metrics(rows.sum())
            accelerator.gather_for_metrics(torch.zeros(3))
            quiet = len(caught)
            accelerator.gather_for_metrics(rows)
        return quiet, [(one.category is GuardRail, str(one.message)) for one in caught]

    for quiet, said in on_two_ranks(read, 5):
        assert quiet == 0
        ((is_guard, text),) = said
        assert is_guard
        assert "got 4 rows after the loop" in text
        assert "gather each batch inside the loop" in text
    assert [said for _, said in on_two_ranks(read, 8)] == [[], []]  # nothing was repeated


def test_what_a_prepared_loader_knows_of_all_ranks() -> None:
    def read():
        accelerator = Accelerator()
        loader = accelerator.prepare(DataLoader(range(9), batch_size=2))
        ends = []
        for _ in loader:
            ends.append(loader.end_of_dataloader)
        return loader.total_batch_size, loader.total_dataset_length, ends, loader.end_of_dataloader

    assert on_two_ranks(read) == [(4, 9, [False, False, True], False)] * 2

"""Sharding without an Accelerator: samplers, datasets and loaders of one rank among several."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from notebook_accel.config.loading import DataLoaderConfiguration, checked_rng_types
from notebook_accel.data.loader import PreparedLoader
from notebook_accel.data.prepare import prepare_loader
from notebook_accel.data.shard import Rule
from notebook_accel.data.skip import SkippedBatches, skip_first_batches
from notebook_accel.ranks.place import placement_here
from notebook_accel.ranks.world import World


class BatchSamplerShard(BatchSampler):
    """A batch sampler that keeps the batches of rank ``process_index`` of ``num_processes``.

    ``split_batches`` cuts each batch into one part a rank; ``even_batches`` completes the tail with
    samples from the start, so that all ranks get equally many batches.

    Errors: ConfigError for a batch size that cannot be split.
    """

    def __init__(
        self,
        batch_sampler: Any,
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,
        even_batches: bool = True,
    ) -> None:
        # Not super().__init__(): the given batch sampler does the sampling.
        self.batch_sampler = batch_sampler
        self.batch_size = getattr(batch_sampler, "batch_size", None)  # type: ignore[assignment]
        self.drop_last = getattr(batch_sampler, "drop_last", False)
        self.rule = Rule(
            process_index,
            num_processes,
            self.batch_size,
            self.drop_last,
            even_batches,
            split_batches,
        )

    def __iter__(self) -> Iterator[Any]:
        return (batch for batch, _ in self.rule.deal(self.batch_sampler))

    def __len__(self) -> int:
        return self.rule.num_batches(len(self.batch_sampler))

    @property
    def total_length(self) -> int:
        """How many batches all ranks together get."""
        return len(self.batch_sampler)


class IterableDatasetShard(IterableDataset[Any]):
    """A stream of which rank ``process_index`` keeps every batch that is its own.

    All ranks read the whole stream. The tail is completed with samples from the start, or left out
    with ``drop_last``. ``split_batches`` says that ``batch_size`` is that of all ranks together.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        drop_last: bool = False,
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,
    ) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.rule = Rule(process_index, num_processes, batch_size, drop_last, True, split_batches)

    def set_epoch(self, epoch: int) -> None:
        """Hand the epoch to the dataset, if it takes it."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        batches = BatchSampler(self.dataset, self.batch_size, self.rule.drop_last)
        for batch, _ in self.rule.deal(batches):
            yield from batch


class SeedableRandomSampler(RandomSampler):
    """A RandomSampler whose order is a function of a seed and the epoch alone.

    The seed is ``data_seed``, or the one that torch had when the sampler was made; each pass is
    the next epoch's, unless ``set_epoch`` says which.
    """

    def __init__(self, *args: Any, data_seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.epoch = 0
        self.initial_seed = torch.initial_seed() if data_seed is None else data_seed

    def __iter__(self) -> Iterator[int]:
        self.generator = torch.Generator().manual_seed(self.initial_seed + self.epoch)
        self.epoch += 1  # a pass that is broken off was a pass
        return super().__iter__()

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next pass is of."""
        self.epoch = epoch


class SkipBatchSampler(SkippedBatches):
    """A batch sampler without its first ``skip_batches`` batches."""

    def __init__(self, batch_sampler: Any, skip_batches: int = 0) -> None:
        super().__init__(batch_sampler, skip_batches)


def skipping_loader(dataset: Any, skip_batches: int = 0, **kwargs: Any) -> DataLoader[Any]:
    """Make a DataLoader whose passes begin after ``skip_batches`` batches."""
    return skip_first_batches(DataLoader(dataset, **kwargs), skip_batches)


def get_sampler(dataloader: DataLoader[Any]) -> Any:
    """Give what orders a loader's samples, under whatever deals or batches them."""
    batches: Any = dataloader.batch_sampler
    while hasattr(batches, "batch_sampler"):
        batches = batches.batch_sampler
    return dataloader.sampler if batches is None else getattr(batches, "sampler", None)


def prepare_data_loader(
    dataloader: DataLoader[Any],
    device: torch.device | str | None = None,
    num_processes: int | None = None,
    process_index: int | None = None,
    split_batches: bool = False,
    put_on_device: bool = False,
    rng_types: Any = None,
    dispatch_batches: bool | None = None,
    even_batches: bool = True,
    slice_fn_for_dispatch: Any = None,
    use_seedable_sampler: bool = False,
    data_seed: int | None = None,
    non_blocking: bool = False,
    use_stateful_dataloader: bool = False,
    torch_device_mesh: Any = None,
) -> PreparedLoader:
    """Make the loader of one rank, without an Accelerator.

    The ranks are those that are there, unless ``num_processes`` and ``process_index`` name others:
    then every rank must draw the same random numbers by itself.

    Ranks: all ranks call it.
    """
    place = placement_here()
    world = World.join(device is not None and torch.device(device).type == "cpu")
    size = place.size if num_processes is None else num_processes
    rank = place.rank if process_index is None else process_index
    if (rank, size) != (world.rank, world.size):
        world = World.alone(str(world.device))
    if device is not None:
        world = replace(world, device=torch.device(device))
    loading = DataLoaderConfiguration(
        split_batches=split_batches,
        dispatch_batches=dispatch_batches,
        even_batches=even_batches,
        use_seedable_sampler=use_seedable_sampler,
        data_seed=data_seed,
        non_blocking=non_blocking,
        use_stateful_dataloader=use_stateful_dataloader,
    )
    kinds = tuple(checked_rng_types(rng_types))
    return prepare_loader(dataloader, world, rank, size, put_on_device, None, loading, kinds)

"""Loaders that begin later in a pass, prepared or not."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from notebook_accel.config.misuse import needs
from notebook_accel.data.loader import PreparedLoader
from notebook_accel.data.stream import SkippedStream
from notebook_accel.errors import ConfigError


class SkippedBatches:
    """A batch sampler (or sampler) without its first ``num_batches`` items, itself otherwise."""

    def __init__(self, batches: Any, num_batches: int) -> None:
        self.batches = batches
        self.num_batches = num_batches

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.batches), self.num_batches, None)

    def __len__(self) -> int:
        return max(0, len(self.batches) - self.num_batches)

    def __getattr__(self, name: str) -> Any:
        if name in ("batches", "sampler"):  # not made yet; and nobody is to exchange the sampler
            raise AttributeError(name)
        return getattr(self.batches, name)


def skip_first_batches(dataloader: DataLoader[Any], num_batches: int = 0) -> DataLoader[Any]:
    """Give a loader whose passes begin after ``num_batches`` batches; the given one stays as it is.

    Of a prepared loader it is a view, and the batches are this rank's; of a plain loader it is a
    plain loader, which may be prepared later.

    Errors: ConfigError for a negative number.
    """
    needs(
        DataLoader,
        dataloader,
        "skip_first_batches()",
        "the batches of a pass are those that a DataLoader makes",
        "pass the DataLoader, prepared or not",
    )
    if num_batches < 0:
        raise ConfigError(
            f"skip_first_batches got num_batches={num_batches}",
            "it is how many batches of a pass are over already",
            "give 0 or more",
        )
    if isinstance(dataloader, PreparedLoader):
        return dataloader.skipping(num_batches)
    skipped = copy.copy(dataloader)
    parts = vars(skipped)
    parts["_iterator"] = None  # live workers stay with the given loader
    if isinstance(dataloader.dataset, IterableDataset):
        parts["dataset"] = SkippedStream(dataloader.dataset, num_batches, dataloader.batch_size)
    elif dataloader.batch_sampler is None:
        parts["sampler"] = SkippedBatches(dataloader.sampler, num_batches)
    else:
        parts["batch_sampler"] = SkippedBatches(dataloader.batch_sampler, num_batches)
    return skipped

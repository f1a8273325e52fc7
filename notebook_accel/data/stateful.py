"""Streams read by torchdata's StatefulDataLoader, which resumes datasets that have a state."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader

from notebook_accel.data.stream import Dealt
from notebook_accel.errors import MissingPackage


def is_stateful(loader: DataLoader[Any]) -> bool:
    """Whether ``loader`` is torchdata's StatefulDataLoader; looking does not import it."""
    return any(one.__module__.startswith("torchdata.") for one in type(loader).__mro__)


def plain_copy(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A DataLoader of its own with the parts of ``loader``, also where that is a stateful one."""
    if not is_stateful(loader):
        copied = copy.copy(loader)
    else:
        copied = object.__new__(DataLoader)
        vars(copied).update(vars(loader))
    vars(copied)["_iterator"] = None  # live workers stay with the person's own loader
    return copied


def stateful_copy(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A StatefulDataLoader that reads the stream of ``loader``.

    Errors: MissingPackage if torchdata is not installed.
    """
    try:
        module = importlib.import_module("torchdata.stateful_dataloader")
    except ModuleNotFoundError as error:
        raise MissingPackage(
            "use_stateful_dataloader=True needs the package torchdata, which is not installed",
            "its StatefulDataLoader keeps the state of a stream; other loaders resume without it",
            'pip install "notebook-accel[stateful]", or leave use_stateful_dataloader out',
        ) from error
    batched = {} if loader.batch_size is None else {"drop_last": loader.drop_last}
    made: DataLoader[Any] = module.StatefulDataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
        **batched,
    )
    return made


def with_states(batches: Iterator[Any], reader: Any) -> Iterator[Dealt]:
    """Give ``batches`` on, each with the state of ``reader`` just after it was read."""
    for batch in batches:
        state = copy.deepcopy(reader.state_dict())
        dealt = batch if type(batch) is Dealt else Dealt(batch, None)
        yield replace(dealt, state=state)

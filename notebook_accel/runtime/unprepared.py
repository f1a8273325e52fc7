"""Guard rails about what never went through ``prepare``, on several ranks: models and data."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from types import FrameType
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, Subset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from notebook_accel.data.loader import PreparedLoader
from notebook_accel.events import rails

_KINDS = {
    nn.Module: "model",
    Optimizer: "optimizer",
    DataLoader: "loader",
    LRScheduler: "scheduler",
}


def call_of_prepare(given: Sequence[Any]) -> str:
    """Write the line that prepares objects such as those ``given``, in their order."""
    kinds = [next((w for t, w in _KINDS.items() if isinstance(one, t)), "other") for one in given]
    names = []
    for index, kind in enumerate(kinds):
        again = kinds[:index].count(kind)
        names.append(f"{kind}{again + 1}" if again else kind)
    listed = ", ".join(names)
    return f"{listed} = accelerator.prepare({listed})"


def warn_of_nothing(num_ranks: int, person: FrameType | None) -> None:
    """Warn of a backward in a run of several ranks that nothing was prepared for."""
    rails.warn(
        "unprepared",
        f"backward() on {num_ranks} ranks, but nothing was prepared",
        "each rank trains a model of its own, alone, on all the data",
        "write `model, optimizer, loader = accelerator.prepare(model, optimizer, loader)` "
        "before the loop",
        *rails.line_of(person),
    )


def warn_of_no_model(num_ranks: int, person: FrameType | None) -> None:
    """Warn of ranks that share data out, and train models that do not know of each other."""
    rails.warn(
        "unprepared-model",
        f"{num_ranks} ranks train, and the model was not prepared",
        "gradients stay on their rank: each trains a model of its own on its part of the data",
        "write `model, optimizer = accelerator.prepare(model, optimizer)` before the loop",
        *rails.line_of(person),
    )


def check_loader(num_ranks: int, person: FrameType | None) -> None:
    """Warn if a DataLoader is being read that was not prepared, and no prepared one ever was.

    It is for ranks that were seen to compute the same batch: who cuts a dataset by hand does not.
    And only of a loader that reads all of a dataset in torch's own order: other orders, parts of a
    dataset and streams may have been shared out in a way that shows later.
    """
    objects = gc.get_objects()
    if any(type(one) is PreparedLoader and one.samples for one in objects):
        return
    if any(issubclass(type(one), _BaseDataLoaderIter) and _reads_all(one) for one in objects):
        rails.warn(
            "unprepared-loader",
            f"{num_ranks} ranks train, and a DataLoader is read that was not prepared",
            "every rank reads the same batches, so each sample is computed once a rank",
            "if your batches come from a DataLoader, prepare it: "
            "`loader = accelerator.prepare(loader)`",
            *rails.line_of(person),
        )


def _reads_all(one: Any) -> bool:
    """Whether a pass of torch's reads a whole dataset in one of torch's own orders."""
    order = getattr(one, "_index_sampler", None)
    if type(order) is BatchSampler:
        order = order.sampler
    whole = type(order) in (SequentialSampler, RandomSampler)
    return whole and not isinstance(getattr(one, "_dataset", None), Subset)

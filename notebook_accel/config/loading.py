"""How prepared loaders read: what Accelerate calls a DataLoaderConfiguration."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from notebook_accel.config.fields import check_kinds, choose
from notebook_accel.config.kinds import RNGType
from notebook_accel.errors import ConfigError


@dataclass
class DataLoaderConfiguration:
    """How prepared loaders share their samples between ranks.

    ``split_batches``: a loader's batch size is that of all ranks together, instead of each rank's.
    ``dispatch_batches``: rank 0 reads for all; None means for iterable datasets only.
    ``even_batches``: the tail is completed with samples from the start, so that all ranks take
    equally many steps; metrics leave these repeats out.
    ``use_seedable_sampler``: the shuffled order is a function of the epoch and of ``data_seed`` (or
    of the seed that torch had at ``prepare``), whatever else is drawn; a ``data_seed`` alone asks
    for it too.
    ``non_blocking``: copies to the device do not wait (pin the loader's memory).
    ``use_stateful_dataloader``: streams are read by torchdata's StatefulDataLoader, so that a
    stream that has a state resumes without being read again.

    Errors: ConfigError for a ``data_seed`` that is no number.
    """

    split_batches: bool = False
    dispatch_batches: bool | None = None
    even_batches: bool = True
    use_seedable_sampler: bool = False
    data_seed: int | None = None
    non_blocking: bool = False
    use_stateful_dataloader: bool = False

    def __post_init__(self) -> None:
        if self.data_seed is not None and (
            isinstance(self.data_seed, bool) or not isinstance(self.data_seed, int)
        ):
            raise ConfigError(
                f"data_seed={self.data_seed!r} is not a whole number",
                "the shuffled order of each epoch is computed from it",
                "write data_seed=42, or leave it out",
            )
        check_kinds(self)


def checked_rng_types(rng_types: Iterable[Any] | None) -> list[RNGType]:
    """Read which random numbers ranks share at the start of each pass; None: those of samplers.

    Errors: ConfigError naming the ones there are.
    """
    given = [rng_types] if isinstance(rng_types, str) else rng_types
    given = [RNGType.GENERATOR] if given is None else given
    return [RNGType(choose(one, "rng_types", RNGType.list())) for one in given]

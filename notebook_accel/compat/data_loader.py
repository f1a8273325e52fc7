"""Accelerate's ``data_loader`` module."""

from notebook_accel.compat.doors import door as _door
from notebook_accel.data.roles import (
    DataLoaderAdapter,
    DataLoaderDispatcher,
    DataLoaderShard,
    DataLoaderStateMixin,
)
from notebook_accel.data.skip import skip_first_batches
from notebook_accel.data.standalone import (
    BatchSamplerShard,
    IterableDatasetShard,
    SeedableRandomSampler,
    SkipBatchSampler,
    get_sampler,
    prepare_data_loader,
)
from notebook_accel.data.standalone import skipping_loader as SkipDataLoader

__all__ = [
    "BatchSamplerShard",
    "DataLoaderAdapter",
    "DataLoaderDispatcher",
    "DataLoaderShard",
    "DataLoaderStateMixin",
    "IterableDatasetShard",
    "SeedableRandomSampler",
    "SkipBatchSampler",
    "SkipDataLoader",
    "get_sampler",
    "prepare_data_loader",
    "skip_first_batches",
]

__getattr__ = _door(__name__)

"""From a person's DataLoader to a prepared one: what is dealt, in which order, to whom."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, Sampler

from notebook_accel.config.kinds import RNGType
from notebook_accel.config.loading import DataLoaderConfiguration
from notebook_accel.data.apart import FetchedApart, as_fetched
from notebook_accel.data.dealers import (
    Dealer,
    DealtBatches,
    DealtSingly,
    DealtToAll,
    DistributedBatches,
)
from notebook_accel.data.dispatch import Dispatch
from notebook_accel.data.loader import Passes, PreparedLoader
from notebook_accel.data.order import AgreedOrder
from notebook_accel.data.reading import Reading, Seat
from notebook_accel.data.shard import Rule
from notebook_accel.data.sharding import can_shard
from notebook_accel.data.stateful import is_stateful, plain_copy, stateful_copy
from notebook_accel.data.stream import CollateDealt, stream_of_steps
from notebook_accel.errors import ConfigError
from notebook_accel.ranks.collectives import broadcast
from notebook_accel.ranks.world import World


def prepare_loader(
    source: DataLoader[Any],
    world: World,
    data_rank: int = 0,
    data_size: int = 1,
    put_on_device: bool = True,
    passes: Passes | None = None,
    loading: DataLoaderConfiguration | None = None,
    rng_types: tuple[RNGType, ...] = (),
    cut: Callable[[Any], Any] | None = None,
) -> PreparedLoader:
    """Make the loader that reads rank ``data_rank``'s share among ``data_size`` readers.

    ``cut`` gives this rank's part of each batch, where several ranks share one.

    Ranks: all ranks call it, and iterate the result together.
    Errors: ConfigError for a sampler made for another number of ranks, or a batch size that
    cannot be split.
    """
    loading = loading or DataLoaderConfiguration()
    seat = Seat(
        world,
        data_rank,
        data_size,
        world.device if put_on_device and world.device.type != "cpu" else None,
        loading.non_blocking or source.pin_memory,
        rng_types if world.size > 1 else (),
        cut,
    )
    is_stream = isinstance(source.dataset, IterableDataset)
    wanted = is_stream if loading.dispatch_batches is None else loading.dispatch_batches
    shared = data_size > 1 and (is_stream or _deals(source) is None)
    dispatch = Dispatch(world, data_rank) if wanted and shared else None
    read = _stream_reading if is_stream else _indexed_reading
    reading = read(source, seat, loading, dispatch)
    return PreparedLoader(source, reading, Passes() if passes is None else passes)


def _stream_reading(
    source: DataLoader[Any],
    seat: Seat,
    loading: DataLoaderConfiguration,
    dispatch: Dispatch | None,
) -> Reading:
    """Read a stream whole, by the rank's own shards of it, or in steps that are shared."""
    dataset: Any = source.dataset
    own_shards = False
    if 1 < seat.size == seat.world.size and dispatch is None and not loading.split_batches:
        own_shards = can_shard(dataset, seat.size)
    parts: dict[str, Any] = {}
    if own_shards:
        parts["dataset"] = dataset.shard(num_shards=seat.size, index=seat.rank)
    elif seat.size > 1:
        rule = _rule(_stream_size(source, loading), source, seat, loading)
        parts = _parts_for_steps(source, rule, for_all=dispatch is not None)
    reader = _reader(source, dispatch, **parts)
    if loading.use_stateful_dataloader or is_stateful(source):
        reader = stateful_copy(reader)
    return Reading(source, reader, None, seat, dispatch, own_shards, loading.even_batches)


def _indexed_reading(
    source: DataLoader[Any],
    seat: Seat,
    loading: DataLoaderConfiguration,
    dispatch: Dispatch | None,
) -> Reading:
    """Read what is dealt of a dataset's indices."""
    sampler = _deals(source)
    if sampler is None:
        dealer = _dealer(source, seat, loading, dispatch)
    else:
        _check_replicas(sampler, seat.size)
        dealer = _noting_dealer(source, sampler)
    parts: dict[str, Any] = {"sampler" if source.batch_sampler is None else "batch_sampler": dealer}
    if seat.size > 1 and source.num_workers == 0 and dispatch is None:
        parts["dataset"] = FetchedApart(source.dataset, source.collate_fn, seat.rank)
        parts["collate_fn"] = as_fetched
    reader = _reader(source, dispatch, **parts)
    return Reading(source, reader, dealer, seat, dispatch, even_shards=loading.even_batches)


def _reader(source: DataLoader[Any], dispatch: Dispatch | None, **parts: Any) -> DataLoader[Any]:
    """Copy a person's loader, with other ``parts``."""
    if dispatch is not None:
        parts["pin_memory"] = False  # what travels need not be pinned
    reader = plain_copy(source)
    vars(reader).update(parts)  # a DataLoader refuses to have them set
    return reader


def _rule(
    batch_size: int | None, batches: Any, seat: Seat, loading: DataLoaderConfiguration
) -> Rule:
    drop_last = bool(getattr(batches, "drop_last", False))
    even, split = loading.even_batches, loading.split_batches
    return Rule(seat.rank, seat.size, batch_size, drop_last, even, split)


def _dealer(
    source: DataLoader[Any],
    seat: Seat,
    loading: DataLoaderConfiguration,
    dispatch: Dispatch | None,
) -> Dealer:
    """What deals the indices of a map-style dataset."""
    world = seat.world if dispatch is None else World.alone()  # rank 0 asks nobody
    data_seed = _data_seed(loading, seat.world)
    given = source.batch_sampler
    singly = given is None
    if given is None:
        order = AgreedOrder(source.sampler, world, data_seed)
        batches: Any = order
    else:
        batches, order = _agreed(given, world, data_seed)
    if seat.size == 1:
        return Dealer(batches, order)
    size = _batch_size(given) if not singly else None if loading.split_batches else 1
    rule = _rule(size, given, seat, loading)
    if dispatch is not None:
        return DealtToAll(batches, order, rule, singly)
    return (DealtSingly if singly else DealtBatches)(batches, order, rule)


def _agreed(batches: Any, world: World, data_seed: int | None) -> tuple[Any, AgreedOrder]:
    """The same batches in an order that all ranks agree on, and that order.

    A batch sampler over a sampler keeps its own ways; another is agreed upon as a whole.
    """
    sampler = getattr(batches, "sampler", None)
    if not isinstance(sampler, Sampler):
        order = AgreedOrder(batches, world)
        return order, order
    inner = copy.copy(batches)
    inner.sampler = order = AgreedOrder(sampler, world, data_seed)
    if type(batches) is BatchSampler:
        return inner, order
    order = AgreedOrder(inner, world)  # it may draw something of its own, whatever it samples from
    return order, order


def _data_seed(loading: DataLoaderConfiguration, world: World) -> int | None:
    if loading.data_seed is not None or not loading.use_seedable_sampler:
        return loading.data_seed
    return int(broadcast(torch.tensor(torch.initial_seed() % 2**63), world).item())


def _parts_for_steps(source: DataLoader[Any], rule: Rule, for_all: bool) -> dict[str, Any]:
    """Give what a reader needs for the steps of a stream, with the shares riding along."""
    size = source.batch_size
    stream = stream_of_steps(source.dataset, for_all)
    return {
        "dataset": stream(source.dataset, size, source.drop_last, rule),
        "collate_fn": CollateDealt(source.collate_fn, size is None, for_all),
        "batch_size": None,  # a step is one item
        "batch_sampler": None,
    }


def _stream_size(source: DataLoader[Any], loading: DataLoaderConfiguration) -> int | None:
    """How many items of a stream make a batch; ready-made ones are dealt one by one, never cut."""
    if source.batch_size is None and not loading.split_batches:
        return 1
    return source.batch_size


def _batch_size(batches: Any) -> int | None:
    size = getattr(batches, "batch_size", None)
    return size if isinstance(size, int) else None


def _deals(loader: DataLoader[Any]) -> Any:
    """Find what deals to ranks by itself in a loader; None where nothing does."""
    batches = loader.batch_sampler
    found = (batches, getattr(batches, "sampler", None), loader.sampler)
    return next(
        (one for one in found if hasattr(one, "num_replicas") and hasattr(one, "rank")), None
    )


def _check_replicas(sampler: Any, data_size: int) -> None:
    if sampler.num_replicas != data_size:
        raise ConfigError(
            f"a loader's sampler deals to {sampler.num_replicas} ranks, but {data_size} read data "
            "here",
            "a loader that already deals to ranks is left as it is",
            "give a plain DataLoader (shuffle=True or False): prepare deals its batches to ranks",
        )


def _noting_dealer(loader: DataLoader[Any], sampler: Any) -> Dealer:
    batches = loader.batch_sampler
    if type(batches) is BatchSampler and type(sampler) is DistributedSampler:
        return DistributedBatches(batches, sampler)
    return Dealer(loader.sampler if batches is None else batches)

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
    reader = plain_copy(source)
    is_stream = isinstance(source.dataset, IterableDataset)
    sharded = not is_stream and _already_sharded(source)
    wanted = loading.dispatch_batches
    dispatch = None
    if data_size > 1 and not sharded and (is_stream if wanted is None else wanted):
        dispatch = Dispatch(world, data_rank)
        vars(reader)["pin_memory"] = False  # what travels need not be pinned
    dealer: Dealer | None = None
    own_shards = False
    if is_stream:
        if data_size > 1 and dispatch is None and data_size == world.size:
            own_shards = can_shard(source.dataset, data_size) and not loading.split_batches
        if own_shards:
            whole: Any = source.dataset
            vars(reader)["dataset"] = whole.shard(num_shards=data_size, index=data_rank)
        elif data_size > 1:
            rule = _rule(_stream_size(source, loading), source, seat, loading)
            _share_stream(reader, rule, dispatch)
        if loading.use_stateful_dataloader or is_stateful(source):
            reader = stateful_copy(reader)
    elif sharded:
        _check_replicas(source, data_size)
        dealer = _noting_dealer(source)
    else:
        dealer = _dealer(source, seat, loading, dispatch)
    if dealer is not None:
        name = "sampler" if source.batch_sampler is None else "batch_sampler"
        vars(reader)[name] = dealer
        if data_size > 1 and source.num_workers == 0 and dispatch is None:
            apart = FetchedApart(source.dataset, source.collate_fn, data_rank)
            vars(reader).update(dataset=apart, collate_fn=as_fetched)
    even_shards = loading.even_batches
    reading = Reading(source, reader, dealer, seat, dispatch, own_shards, even_shards)
    return PreparedLoader(source, reading, Passes() if passes is None else passes)


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


def _share_stream(reader: DataLoader[Any], rule: Rule, dispatch: Dispatch | None) -> None:
    """Let ``reader`` read the steps of a stream, with the shares riding along."""
    parts = vars(reader)
    size = reader.batch_size
    stream = stream_of_steps(reader.dataset, for_all=dispatch is not None)
    parts["dataset"] = stream(reader.dataset, size, reader.drop_last, rule)
    parts["collate_fn"] = CollateDealt(reader.collate_fn, size is None, dispatch is not None)
    parts["batch_size"] = parts["batch_sampler"] = None  # a step is one item


def _stream_size(source: DataLoader[Any], loading: DataLoaderConfiguration) -> int | None:
    """How many items of a stream make a batch; ready-made ones are dealt one by one, never cut."""
    if source.batch_size is None and not loading.split_batches:
        return 1
    return source.batch_size


def _batch_size(batches: Any) -> int | None:
    size = getattr(batches, "batch_size", None)
    return size if isinstance(size, int) else None


def _samplers(loader: DataLoader[Any]) -> list[Any]:
    batches = loader.batch_sampler
    found = [batches, getattr(batches, "sampler", None), loader.sampler]
    return [one for one in found if hasattr(one, "num_replicas") and hasattr(one, "rank")]


def _already_sharded(loader: DataLoader[Any]) -> bool:
    return bool(_samplers(loader))


def _check_replicas(loader: DataLoader[Any], data_size: int) -> None:
    made_for = _samplers(loader)[0].num_replicas
    if made_for != data_size:
        raise ConfigError(
            f"a loader's sampler deals to {made_for} ranks, but {data_size} read data here",
            "a loader that already deals to ranks is left as it is",
            "give a plain DataLoader (shuffle=True or False): prepare deals its batches to ranks",
        )


def _noting_dealer(loader: DataLoader[Any]) -> Dealer:
    batches, sampler = loader.batch_sampler, _samplers(loader)[0]
    if type(batches) is BatchSampler and type(sampler) is DistributedSampler:
        return DistributedBatches(batches, sampler)
    return Dealer(loader.sampler if batches is None else batches)

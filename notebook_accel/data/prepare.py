"""From a person's DataLoader to a prepared one: what is dealt, in which order, to whom."""

from __future__ import annotations

import copy
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    Sampler,
)

from notebook_accel.data.dealers import Dealer, DealtBatches, DealtSingly, DistributedBatches
from notebook_accel.data.loader import Passes, PreparedLoader
from notebook_accel.data.order import AgreedOrder
from notebook_accel.data.shard import Rule
from notebook_accel.data.stream import CollateDealt, ShardedStream
from notebook_accel.errors import ConfigError
from notebook_accel.ranks.world import World


def prepare_loader(
    source: DataLoader[Any],
    world: World,
    data_rank: int = 0,
    data_size: int = 1,
    put_on_device: bool = True,
    even_batches: bool = True,
    split_batches: bool = False,
    passes: Passes | None = None,
) -> PreparedLoader:
    """Make the loader that reads rank ``data_rank``'s share among ``data_size`` readers.

    Ranks: all ranks call it, and iterate the result together.
    Errors: ConfigError for a sampler made for another number of ranks, or a batch size that
    cannot be split.
    """
    reader = copy.copy(source)
    vars(reader)["_iterator"] = None  # live workers stay with the person's own loader
    device = world.device if put_on_device and world.device.type != "cpu" else None

    def rule(batch_size: int | None, drop_last: bool = False) -> Rule:
        return Rule(data_rank, data_size, batch_size, drop_last, even_batches, split_batches)

    dealer: Dealer | None = None
    if isinstance(source.dataset, IterableDataset):
        if data_size > 1:
            _deal_stream(reader, rule(source.batch_size or 1, source.drop_last))
    elif _already_sharded(source):
        _check_replicas(source, data_size)
        dealer = _noting_dealer(source)
    elif source.batch_sampler is None:
        order = AgreedOrder(source.sampler, world)
        dealer = DealtSingly(order, order, rule(1)) if data_size > 1 else Dealer(order, order)
    else:
        batches, order = _agreed(source.batch_sampler, world)
        dealer = Dealer(batches, order)
        if data_size > 1:
            given = source.batch_sampler
            drop_last = getattr(given, "drop_last", False)
            dealer = DealtBatches(batches, order, rule(_batch_size(given), drop_last))
    if dealer is not None:
        name = "sampler" if source.batch_sampler is None else "batch_sampler"
        vars(reader)[name] = dealer
    passes = Passes() if passes is None else passes
    return PreparedLoader(source, reader, dealer, data_size, device, passes)


def _agreed(batches: Any, world: World) -> tuple[Any, AgreedOrder]:
    """The same batches in an order that all ranks agree on, and that order."""
    sampler = getattr(batches, "sampler", None)
    if not isinstance(sampler, Sampler):
        order = AgreedOrder(batches, world)
        return order, order
    batches = copy.copy(batches)
    batches.sampler = order = AgreedOrder(sampler, world)
    return batches, order


def _deal_stream(reader: DataLoader[Any], rule: Rule) -> None:
    """Let ``reader`` read its rank's part of a stream, with the shares riding along."""
    parts = vars(reader)
    size, drop_last = reader.batch_size, reader.drop_last
    parts["dataset"] = ShardedStream(reader.dataset, size, drop_last, rule)
    parts["collate_fn"] = CollateDealt(reader.collate_fn, ready_made=size is None)
    if rule.split and size is not None:
        parts["batch_size"] = size // rule.size
        parts["batch_sampler"] = BatchSampler(reader.sampler, size // rule.size, drop_last)


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
            f"A loader's sampler deals to {made_for} ranks, but {data_size} read data here.",
            "a loader that already deals to ranks is left as it is.",
            "give a plain DataLoader (shuffle=True or False): prepare deals its batches to ranks.",
        )


def _noting_dealer(loader: DataLoader[Any]) -> Dealer:
    batches, sampler = loader.batch_sampler, _samplers(loader)[0]
    if type(batches) is BatchSampler and type(sampler) is DistributedSampler:
        return DistributedBatches(batches, sampler)
    return Dealer(loader.sampler if batches is None else batches)

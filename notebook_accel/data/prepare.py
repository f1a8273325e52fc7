"""From a person's DataLoader to a prepared one: what is dealt, in which order, to whom."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
)

from notebook_accel.data.loader import Passes, PreparedLoader
from notebook_accel.data.order import AgreedOrder
from notebook_accel.data.shard import Rule, Share, distributed_sampler_shares
from notebook_accel.data.stream import CollateDealt, ShardedStream, whole
from notebook_accel.errors import ConfigError
from notebook_accel.ranks.world import World


class DealtBatches:
    """A batch sampler that keeps this rank's batches and records every step's share."""

    def __init__(self, batches: Any, rule: Rule) -> None:
        self.batches = batches
        self.rule = rule
        self.record: deque[Share] = deque()

    def __iter__(self) -> Iterator[Any]:
        return self._deal(self.record)

    def __len__(self) -> int:
        return self.rule.num_batches(len(self.batches))

    def _deal(self, record: deque[Share]) -> Iterator[Any]:
        for batch, share in self.rule.deal(self.batches):
            record.append(share)
            yield batch


class DealtSingly(DealtBatches):
    """A sampler for loaders without batching: each item is a ready-made batch, dealt whole."""

    def _deal(self, record: deque[Share]) -> Iterator[Any]:
        for batch, share in self.rule.deal([index] for index in self.batches):
            record.append(whole(share))
            yield batch[0]


class DistributedBatches:
    """A batch sampler over torch's DistributedSampler, which only notes who got what."""

    def __init__(self, batches: BatchSampler, sampler: DistributedSampler[Any]) -> None:
        self.batches = batches
        self.sampler = sampler
        self.record: deque[Share] = deque()

    def __iter__(self) -> Iterator[Any]:
        return self._note(self.record)

    def __len__(self) -> int:
        return len(self.batches)

    def _note(self, record: deque[Share]) -> Iterator[Any]:
        sampler = self.sampler
        kept = sampler.total_size if sampler.drop_last else len(sampler.dataset)  # type: ignore[arg-type]
        shares = distributed_sampler_shares(
            kept, sampler.num_replicas, self.batches.batch_size, self.batches.drop_last
        )
        for batch, share in zip(self.batches, shares, strict=True):
            record.append(share)
            yield batch


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

    if isinstance(source.dataset, IterableDataset):
        if data_size > 1:
            _deal_stream(reader, rule(source.batch_size or 1, source.drop_last))
    elif _already_sharded(source):
        _check_replicas(source, data_size)
        _note_distributed(reader)
    elif source.batch_sampler is None:
        order: Any = AgreedOrder(source.sampler, world)
        vars(reader)["sampler"] = DealtSingly(order, rule(1)) if data_size > 1 else order
    else:
        batches = _agreed(source.batch_sampler, world)
        if data_size > 1:
            drop_last = getattr(batches, "drop_last", False)
            batches = DealtBatches(batches, rule(_batch_size(batches), drop_last))
        vars(reader)["batch_sampler"] = batches
    return PreparedLoader(source, reader, device, Passes() if passes is None else passes)


def _agreed(batches: Any, world: World) -> Any:
    """The same batch sampler over an order that all ranks agree on."""
    sampler = getattr(batches, "sampler", None)
    if not isinstance(sampler, Sampler):
        return batches
    if world.size == 1 and not isinstance(sampler, RandomSampler):
        return batches
    batches = copy.copy(batches)
    batches.sampler = AgreedOrder(sampler, world)
    return batches


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


def _note_distributed(reader: DataLoader[Any]) -> None:
    batches, sampler = reader.batch_sampler, _samplers(reader)[0]
    if type(batches) is BatchSampler and type(sampler) is DistributedSampler:
        vars(reader)["batch_sampler"] = DistributedBatches(batches, sampler)

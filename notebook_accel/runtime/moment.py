"""A moment of a run: taken from the live objects, and given back to them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch

from notebook_accel.checkpoint import randomness, sharded
from notebook_accel.checkpoint.state import Checkpoint, Snapshot
from notebook_accel.config.words import ranks
from notebook_accel.ranks.collectives import map_tensors, rank_sizes
from notebook_accel.ranks.shards import parts_like
from notebook_accel.ranks.world import World
from notebook_accel.runtime.clock import Clock
from notebook_accel.runtime.prepare import Wardrobe
from notebook_accel.strategies.base import parameters_of


@dataclass(frozen=True)
class Parts:
    """What has a state besides the models; ``registered`` are pairs (object, on each rank)."""

    wardrobe: Wardrobe
    clock: Clock
    scaler: torch.amp.GradScaler | None
    registered: list[tuple[Any, bool]]


def take(
    parts: Parts,
    models: list[dict[str, Any]],
    optimizers: list[dict[str, Any]],
    device: torch.device,
) -> Snapshot:
    """Take the state of everything; ``models`` and ``optimizers`` are their states."""
    wardrobe, registered = parts.wardrobe, parts.registered
    return Snapshot(
        step=parts.clock.step,
        optimizer_steps=[one.num_steps for one in wardrobe.optimizers],
        models=models,
        optimizers=optimizers,
        schedulers=[one.state_dict() for one in wardrobe.schedulers],
        scaler=None if parts.scaler is None else parts.scaler.state_dict(),
        loaders=[one.state_dict() for one in wardrobe.loaders],
        custom=[one.state_dict() for one, _ in registered],
        each_rank=[i for i, (_, each) in enumerate(registered) if each],
        random=randomness.states(device),
    )


def give_back(saved: Checkpoint, parts: Parts, world: World, load_kwargs: dict[str, Any]) -> None:
    """Give everything but the models the state that it had, random numbers last.

    Ranks: all ranks call it.
    """
    own, main = saved.own(world.rank), saved.main_own()
    wardrobe, registered = parts.wardrobe, parts.registered
    optimizers = saved.shared("optimizers", **load_kwargs) if wardrobe.optimizers else []
    pieces = sharded.of(saved)
    for i, (optimizer, state) in enumerate(zip(wardrobe.optimizers, optimizers, strict=True)):
        trained = parameters_of(optimizer)
        state = parts_like(state, trained)
        if world.device.type == "cpu":  # read lazily: nobody else would copy it from the file
            state = map_tensors(torch.clone, state)
        if pieces is not None:
            pieces.add_to(i, state, trained)
        optimizer.load_state_dict(state)
    schedulers = saved.shared("schedulers", **load_kwargs) if wardrobe.schedulers else []
    for scheduler, state in zip(wardrobe.schedulers, schedulers, strict=True):
        scheduler.load_state_dict(state)
    scale = saved.scaler()
    if parts.scaler is not None and scale is not None:
        parts.scaler.load_state_dict(scale)
    states = saved.custom(own)
    for (one, _), state in zip(registered, states, strict=True):
        one.load_state_dict(state)
    parts.clock.reset()
    if saved.manifest is not None:  # Accelerate counts only micro-batches
        parts.clock.step = saved.manifest.step
        steps = (own or main or {}).get("optimizer_steps", [])
        for optimizer, num_steps in zip(wardrobe.optimizers, steps, strict=False):
            optimizer.num_steps = num_steps
        alike = own is not None and saved.manifest.world == world.size
        places = own["loaders"] if own and alike else saved.loaders()
        _place_loaders(wardrobe.loaders, places, say=world.rank == 0)
    if own is not None:
        randomness.restore(own, world.device)
    elif main is not None:
        randomness.derive(main, world.rank)
    _say_what_is_derived(saved, [bool(n) for n in rank_sizes(int(own is None), world)], world)


def _place_loaders(loaders: list[Any], states: list[dict[str, Any]], say: bool) -> None:
    if len(states) == len(loaders):
        for loader, state in zip(loaders, states, strict=True):
            loader.load_state_dict(state)
    elif states and loaders and say:
        warnings.warn(
            f"The checkpoint knows {len(states)} loaders, {len(loaders)} were prepared: "
            "none is put where it was; they begin a new pass.",
            stacklevel=4,
        )


def _say_what_is_derived(saved: Checkpoint, absent: list[bool], world: World) -> None:
    if world.rank == 0 and any(absent):
        those = ranks([rank for rank, is_absent in enumerate(absent) if is_absent])
        warnings.warn(
            f"{saved.folder} has no random numbers of {those} (saved by fewer ranks, or by "
            "the main rank alone): they are derived from rank 0's, so the run goes on well, but "
            "not bit for bit.",
            stacklevel=4,
        )

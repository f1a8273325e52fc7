"""What a rank of a choice holds, by precision and by strategy; activations come on top. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from notebook_accel.config.budget import Budget, Training, budget
from notebook_accel.config.offers import Costed, costed
from notebook_accel.config.sizes import Sizes
from notebook_accel.launch.machine import Machine
from notebook_accel.ui import menu
from notebook_accel.ui.choices import Choice, devices_of, standings


@dataclass(frozen=True)
class Footprint:
    """What one rank holds in one precision, under the strategy of the choice, by Adam."""

    precision: str
    memory: Budget


def by_precision(sizes: Sizes | None, choice: Choice, machine: Machine) -> tuple[Footprint, ...]:
    """Tell what a rank holds in each precision that there is; nothing where nobody has counted."""
    if sizes is None:
        return ()
    wish = menu.wish_of(choice.strategy, choice.num_processes)
    names = [one.precision for one in standings(choice, machine) if one.can_be_picked]
    found = [(name, budget(wish, sizes, Training(choice.num_processes, name))) for name in names]
    return tuple(Footprint(name, memory) for name, memory in found if memory is not None)


def by_strategy(sizes: Sizes | None, choice: Choice, machine: Machine) -> tuple[Costed, ...]:
    """Tell what a rank holds under each strategy that there is for so many ranks, best first."""
    if sizes is None or choice.num_processes == 1:
        return ()
    training = Training(choice.num_processes, choice.mixed_precision)
    free = room(choice, machine)
    return tuple(
        costed(
            sizes, training, lambda memory: memory.total <= free if free else None,
            machine.packages.__contains__, choice.device == "cpu",
        )
    )  # fmt: skip


def room(choice: Choice, machine: Machine) -> int:
    """Give what is free for each rank, in bytes; 0 where nobody knows."""
    used = devices_of(choice.device, machine)[: choice.num_processes]
    if used:
        return min(one.free_bytes if one.total_bytes else 0 for one in used)
    return machine.free_bytes // choice.num_processes if machine.total_bytes else 0

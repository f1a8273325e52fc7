"""``device="fake"``: a layout of many ranks, validated by one process that plays one of them.

The process has the rank and the world size that were asked for, computes on the CPU with real
tensors, and its collectives answer as if every other rank were like it. Not on the meta device: a
loop that looks at its loss, its metrics or its batches would not get far there.
"""

from __future__ import annotations

from notebook_accel.config.placement import FAKE, Placement
from notebook_accel.config.words import counted
from notebook_accel.errors import ConfigError
from notebook_accel.launch.plan import LaunchPlan


def plan_fake(device: str, num_processes: int | None, num_nodes: int, num_cores: int) -> LaunchPlan:
    """Place the one rank that is played ("fake": rank 0, "fake:17": rank 17) in its world.

    Errors: ConfigError where nobody says how many ranks there are, or for one that is not there.
    """
    if num_processes is None:
        raise ConfigError(
            f"device={device!r} without num_processes",
            "a layout of ranks that are not there has no natural number of them",
            f"write num_processes=64, device={device!r}",
        )
    size = num_processes * num_nodes
    rank = int(device.partition(":")[2] or 0)
    if rank >= size:
        raise ConfigError(
            f"device={device!r} in a world of {size} ranks",
            "it names the rank to play, and ranks are numbered from 0",
            f'write device="fake:{size - 1}" for the last one',
        )
    comm = FAKE if size > 1 else None
    place = Placement(rank, size, 0, 1, "cpu", comm, ranks_per_machine=num_processes)
    return LaunchPlan(
        (place,),
        num_cores,
        {},
        f"{counted(size, 'fake rank')} (rank {rank} is played on the CPU; fake: "
        "numbers mean nothing)",  # wherever the run is named: on the panel, on record, in reports
        (
            "a fake run checks how things are laid out: shards, batches, memory. Losses, metrics "
            "and times are not those of a real run, and nothing is saved.",
        ),
    )

"""Who is there: a placement joined to its device and its process group.

The process group is one per process and belongs to torch, so a ``World`` is only a description
of it: joining twice gives equal values, and a group that the user made before is used as it is.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from notebook_accel.config.placement import FAKE, Placement, meeting_place
from notebook_accel.config.training import from_env
from notebook_accel.errors import ConfigError
from notebook_accel.events import context
from notebook_accel.ranks import watch

LOOK_INTERVAL_S = 0.005
LONGEST_LOOKS = 200


@dataclass(frozen=True)
class World:
    """One rank's place among all ranks, with the torch device it computes on.

    ``checks`` is debug mode: ranks compare shapes and dtypes before each collective.
    """

    placement: Placement
    device: torch.device
    checks: bool = False

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        return self.placement.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.placement.size

    @property
    def is_fake(self) -> bool:
        """Whether the other ranks are only played, and answer as this one would."""
        return self.placement.comm == FAKE

    @property
    def meets_on_cpu(self) -> bool:
        """Whether the ranks' own group carries tensors of the CPU."""
        return self.placement.comm in ("gloo", FAKE)

    @property
    def wire(self) -> torch.device:
        """Where a tensor must lie for a collective: the GPU under nccl, the CPU under gloo."""
        return self.device if self.placement.comm == "nccl" else torch.device("cpu")

    @staticmethod
    def alone(device: str = "cpu") -> World:
        """A world of one, which needs no process group."""
        return World(Placement(device=device), torch.device(device))

    @staticmethod
    def join(cpu: bool = False, **group: Any) -> World:
        """Take this process's place, making the process group if there is none yet.

        In a launched worker the launch decided the place; elsewhere the environment of torchrun,
        Slurm or mpirun does; without either it is a world of one. ``cpu`` keeps to the CPU
        whatever is there; ``group`` are arguments of ``torch.distributed.init_process_group``
        (``timeout``...), which count for the first that joins.

        Ranks: all ranks call it; it returns when all have.
        """
        placement = _placement(cpu or from_env("device") == "cpu")
        if not dist.is_initialized():
            _forget_the_group()  # the person may have ended it
        if dist.is_initialized():
            placement = replace(
                placement,
                rank=dist.get_rank(),
                size=dist.get_world_size(),
                comm=str(dist.get_backend()),
            )
        elif placement.comm == FAKE:
            _play(placement)
        elif placement.size > 1:
            placement = replace(placement, comm=group.get("backend") or placement.comm)
            given = {**group, "backend": placement.comm}
            given["init_method"] = group.get("init_method") or meeting_place()
            if from_env("debug"):  # torch then compares what ranks bring to its own collectives
                torchs: Any = dist
                torchs.set_debug_level(torchs.DebugLevel.DETAIL)
            dist.init_process_group(rank=placement.rank, world_size=placement.size, **given)
            if placement.comm == "gloo":  # who is done at once must not leave others half connected
                watch.barrier()
            leave_at_exit()
        device = torch.device(placement.device)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        return World(placement, device, placement.size > 1 and from_env("debug"))

    def wait(self) -> None:
        """Wait until all ranks are here.

        Ranks: all ranks call it.
        """
        if self.size == 1:
            return
        if self.placement.comm == "nccl":
            watch.barrier(device_ids=[self.device.index or 0])
        else:
            watch.barrier()


def _play(placement: Placement) -> None:
    """Make a group in which every other rank answers as this one would."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # it registers the backend

    store = FakeStore()
    dist.init_process_group(FAKE, rank=placement.rank, world_size=placement.size, store=store)
    leave_at_exit()


def leave() -> None:
    """Leave the process group, if there is one, and forget what belonged to it."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    _forget_the_group()


def when_left(forget: Callable[[], None]) -> None:
    """Let ``forget`` be called once the process group is left, or at the latest before a new one.

    What is kept by a group's ``id`` must go with it: the next group may have the same.
    """
    _of_the_group.append(forget)


def _forget_the_group() -> None:
    while _of_the_group:
        _of_the_group.pop()()


_of_the_group: list[Callable[[], None]] = []


def leave_script() -> None:
    """Leave the process group of a script that is about to end, so that it does not abort.

    A thread of gloo that lets go of its last tensors after the interpreter has begun to end is
    ended by Python inside a C++ destructor, which aborts the process. Destroying the group does
    not join these threads while anybody (DDP does) holds it. So they are given the time, and the
    interpreter lock, that they need. A launched worker ends by ``os._exit`` and needs none of it.
    """
    leave()
    quiet = 0
    for _ in range(LONGEST_LOOKS):
        time.sleep(LOOK_INTERVAL_S)  # lets go of the interpreter lock
        quiet = 0 if _gloo_is_running() else quiet + 1
        if quiet == 2:  # what waited for the lock at the first look has had it by the second
            return


def _gloo_is_running() -> bool:
    """Whether a gloo thread wants the processor; only Linux can tell, elsewhere we just wait."""
    for task in Path("/proc/self/task").glob("*/stat"):
        try:
            name, _, rest = task.read_text().partition(")")
        except OSError:  # the thread has ended meanwhile
            continue
        if "gloo" in name and rest.split()[0] == "R":
            return True
    return False


def pick_device_type(num_gpus: int, has_mps: bool, size: int, local_rank: int) -> str:
    """Choose what a process that nobody placed computes on: "cuda", "mps" or "cpu".

    Errors: ConfigError when there are more ranks than GPUs on this machine.
    """
    if num_gpus > 0:
        if local_rank >= num_gpus:
            raise ConfigError(
                f"local rank {local_rank} has no GPU: this machine shows {num_gpus}",
                "each rank needs a GPU of its own; nccl refuses to share one",
                f"start at most {num_gpus} ranks here, or use Accelerator(cpu=True)",
            )
        return "cuda"
    return "mps" if has_mps and size == 1 else "cpu"


def _placement(cpu: bool) -> Placement:
    worker = context.current()
    if worker is not None:
        placement = worker.placement
        if cpu and placement.device != "cpu":
            comm = None if placement.size == 1 else "gloo"
            placement = replace(placement, device="cpu", comm=comm)
        return placement
    if cpu:
        return Placement.from_env(device_type="cpu")
    place = Placement.from_env()
    named = from_env("torch_device")
    if named is not None and place.size == 1:
        return replace(place, device=_known_device(named))
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    has_mps = torch.backends.mps.is_available()
    return Placement.from_env(
        device_type=pick_device_type(num_gpus, has_mps, place.size, place.local_rank)
    )


def _known_device(name: str) -> str:
    try:
        return str(torch.device(name))
    except RuntimeError as error:
        raise ConfigError(
            f"ACCELERATE_TORCH_DEVICE={name} is no device",
            f"torch says: {str(error).splitlines()[0]}",
            "set it to a device such as cpu, cuda:1 or mps, or unset it",
        ) from None


def leave_at_exit() -> None:
    """Leave the process group when the run, or a script, ends."""
    worker = context.current()
    if worker is not None:
        worker.at_exit.append(leave)
    else:
        atexit.unregister(leave_script)  # once is enough
        atexit.register(leave_script)

"""Who a worker is: plain data, decided by the launcher or read from the environment.

Torchrun, Slurm and the several kinds of mpirun each tell a process its rank under names of their
own. This is the one place that knows them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from notebook_accel.errors import ConfigError

DEFAULT_PORT = 29500
FAKE = "fake"  # the collectives of ranks that are only played
# Who tells ranks -> variables of rank, size, local rank, local size. An mpirun inside a Slurm job
# has its helpers started by Slurm, whose numbers are then not the ranks': Slurm comes last.
TELLERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "Open MPI": tuple(
        f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    ),
    "MVAPICH": tuple(
        f"MV2_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    ),
    "MPI": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "Slurm": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
}


@dataclass(frozen=True)
class Told:
    """The place that the environment gives this process, and who wrote it there."""

    by: str
    rank: int
    size: int
    local_rank: int
    local_size: int


@dataclass(frozen=True)
class Placement:
    """One rank's place in the run.

    ``device`` is a torch device string ("cpu", "cuda:0", "mps"), ``comm`` the collective library
    ("gloo", "nccl") or None for a world of one that needs none. In a layout that is only played it
    is "fake": this process is one rank of it, and ``ranks_per_machine`` tells of its machines.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    device: str = "cpu"
    comm: str | None = None
    ranks_per_machine: int | None = None

    @property
    def machine_size(self) -> int:
        """How many ranks each machine of the layout has."""
        return self.ranks_per_machine or self.local_size

    @staticmethod
    def from_env(env: Mapping[str, str] | None = None, device_type: str = "cpu") -> Placement:
        """Read the place that torchrun, Slurm or mpirun gave this process; else a world of one.

        ``device_type`` is "cpu", "cuda" or "mps": what this process computes on.

        Errors: ConfigError for a rank that is no number.
        """
        told = told_by(os.environ if env is None else env) or Told("", 0, 1, 0, 1)
        device = f"cuda:{told.local_rank}" if device_type == "cuda" else device_type
        comm = None if told.size == 1 else ("nccl" if device_type == "cuda" else "gloo")
        return Placement(
            told.rank, told.size, told.local_rank, told.local_size, device=device, comm=comm
        )


def torchruns_names(place: Placement | Told) -> dict[str, str]:
    """Give the variables that tell a rank its place, as torchrun sets them."""
    return {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_size),
    }


def told_by(env: Mapping[str, str]) -> Told | None:
    """Find the place that ``env`` gives this process, if it gives any.

    Errors: ConfigError for a rank that is no number.
    """
    env = _inside_a_step(env)
    for teller, (rank, size, local_rank, local_size) in TELLERS.items():
        if size not in env or (teller != "torchrun" and rank not in env):
            continue
        count, number = _number(env, size, 1), _number(env, rank, 0)
        if not 0 <= number < count:
            raise ConfigError(
                f"the environment says {rank}={number} and {size}={count}",
                "ranks are numbered from 0, and there are as many as the second says",
                f"set both as {teller} does, or unset both",
            )
        # A pod is a machine of its own; elsewhere ranks without a local one share one machine.
        alone = "KUBERNETES_SERVICE_HOST" in env
        return Told(
            teller,
            number,
            count,
            _number(env, local_rank, 0 if alone else number),
            _number(env, local_size, _slurm_local_size(env) or (1 if alone else count)),
        )
    return None


def meeting_place(env: Mapping[str, str] | None = None) -> str:
    """Say where the ranks of this environment meet, as ``init_method`` of a process group.

    Errors: ConfigError where nothing tells the first machine's address.
    """
    env = os.environ if env is None else env
    if "MASTER_ADDR" in env and "MASTER_PORT" in env:
        return "env://"
    told = told_by(env)
    port = env.get("MASTER_PORT", str(DEFAULT_PORT))
    address = env.get("MASTER_ADDR")
    if told is not None and told.by == "Slurm":
        job = re.sub(r"\D", "", env.get("SLURM_JOB_ID", ""))
        port = env.get("MASTER_PORT", str(15000 + int(job[-4:] or 0)))  # one job, one port
        hosts = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST", "")
        nodes = "SLURM_STEP_NUM_NODES" if "SLURM_STEP_NUM_NODES" in env else "SLURM_NNODES"
        address = address or (first_host(hosts) if _number(env, nodes, 1) > 1 else "127.0.0.1")
    if address is None and (told is None or told.size == told.local_size):
        address = "127.0.0.1"  # all of them are here
    if address is None:
        raise ConfigError(
            f"{told.by if told else 'nobody'} tells no address at which the ranks could meet",
            "ranks on several machines find each other through the first machine",
            "set MASTER_ADDR to the first machine's address, and MASTER_PORT to a free port of it",
        )
    return f"tcp://{address}:{port}"


def first_host(hosts: str) -> str | None:
    """Give the first of the hosts that Slurm lists: "node07" of "node[07-09,12],login1"."""
    found = re.match(r"([^\[,]+)(?:\[([^\],-]+))?", hosts.strip())
    return found[1] + (found[2] or "") if found else None


def _inside_a_step(env: Mapping[str, str]) -> Mapping[str, str]:
    """Leave Slurm's size out unless srun started this process: a batch script is no rank.

    In a batch script SLURM_NTASKS is what was asked for, and a process that took it for the size
    of a world would wait for the others for ever.
    """
    if "SLURM_STEP_NUM_TASKS" in env or "SLURM_NTASKS" not in env:
        return env
    if "SLURM_JOB_ID" in env and "SLURM_STEP_ID" not in env:
        return env
    return {**env, "SLURM_STEP_NUM_TASKS": env["SLURM_NTASKS"]}


def _slurm_local_size(env: Mapping[str, str]) -> int | None:
    """Read how many tasks this node has: "4" or "4(x2)"; None where nodes differ."""
    found = re.fullmatch(r"(\d+)(\(x\d+\))?", env.get("SLURM_STEP_TASKS_PER_NODE", ""))
    return int(found[1]) if found else None


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise ConfigError(
            f"the environment variable {name} is {text!r}",
            "it tells a process its place among the ranks, and that is a whole number",
            f"set {name} to a number, or unset it",
        ) from None

"""Who starts the processes of a script, with which words and environment.

Pure: what is on this machine and in its environment was looked up before and is passed in.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from notebook_accel.config.placement import (
    Placement,
    Told,
    meeting_place,
    told_by,
    torchruns_names,
)
from notebook_accel.config.resolve import RunConfig
from notebook_accel.config.words import counted
from notebook_accel.errors import ConfigError
from notebook_accel.launch.addresses import LOOPBACK
from notebook_accel.launch.plan import crowd
from notebook_accel.launch.scripts import outside, rendezvous
from notebook_accel.launch.scripts.local import Local, local
from notebook_accel.launch.scripts.program import Program

if TYPE_CHECKING:
    from notebook_accel.launch.devices import Device

ITSELF = "the script itself"
SIDE_BY_SIDE = "processes side by side on this machine"
AGENT = "torch's elastic agent"
MPIRUN = "mpirun"
DEEPSPEED = "deepspeed"
TOLD = "one rank of those that the environment tells"

# The directory that Python puts first on its path may have files named like torch's imports.
_BE_AGENT = (
    "import sys; sys.path.append(sys.path.pop(0)); "
    "from notebook_accel.launch.scripts.elastic import main; sys.exit(main(sys.argv[1:]))"
)
_OF_TORCHRUN = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
)


@dataclass(frozen=True)
class Here:
    """What is known of this machine.

    ``address`` is the one that leads to the first machine, ``interface`` what keeps the ranks'
    connections on it; ``busy_ports`` are those wanted ones that another program listens on.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    devices: Sequence[Device] = ()
    num_cores: int = 1
    address: str = ""
    interface: Mapping[str, str] = field(default_factory=dict)
    busy_ports: Collection[int] = ()
    has_open_mpi: bool = False


@dataclass(frozen=True)
class Way:
    """Everything decided about a launch.

    ``words`` become this process, or each of ``num_ranks`` children if ``who`` is SIDE_BY_SIDE;
    ``env`` is set and ``without`` taken out of the environment. ``port`` is where the ranks of one
    machine are to meet, None for any. One that does not speak leaves that to another rank. How
    many ranks all machines have together is None where another launcher counts them.
    """

    who: str
    words: tuple[str, ...]
    env: Mapping[str, str]
    headline: str
    without: tuple[str, ...] = ()
    num_ranks: int = 1
    port: int | None = None
    notes: tuple[str, ...] = ()
    speaks: bool = True
    world_size: int | None = 1

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Give the environment that the program gets, made of this process's."""
        kept = {name: value for name, value in env.items() if name not in self.without}
        return {**kept, **self.env}


def choose(program: Program, config: RunConfig, torchrun: rendezvous.Torchrun, here: Here) -> Way:
    """Decide how ``program`` is started.

    Errors: ConfigError for counts, devices, machines and addresses that cannot be.
    """
    told = told_by(here.env)
    if told is not None and told.size > 1 and not _asks_for_processes(config, torchrun):
        return _told(program, config, told, here)
    wanted = rendezvous.local_count(config, torchrun, here.devices, here.num_cores)
    place = local(config, here.devices, here.env, wanted)
    env, threads = _environment(config, place, here)
    launcher = config["deepspeed_multinode_launcher"] or "standard"
    if config["deepspeed_hostfile"] or launcher != "standard":
        words = outside.deepspeed(program, config, env, place.num_ranks)
        headline = f"{DEEPSPEED}, {place.words} a machine"
        return Way(DEEPSPEED, words, {}, headline, _OF_TORCHRUN, world_size=None)
    if config["mpirun_hostfile"]:
        words = outside.mpirun(program, config, env, here.has_open_mpi)
        headline = f"{MPIRUN}, {place.words} a machine"
        return Way(MPIRUN, words, {}, headline, _OF_TORCHRUN, world_size=None)
    if rendezvous.is_wanted(config, torchrun):
        return _agent(program, config, torchrun, here, place, env, threads)
    notes = (*place.notes, *_crowd(place, here))
    if place.num_ranks == 1:
        # whoever else tells a place is overruled under the names that count before
        alone = {} if told is None or told.by == "torchrun" else torchruns_names(Placement())
        return Way(
            ITSELF, program.words(), {**env, **alone}, f"{place.words}, {threads}",
            without=_OF_TORCHRUN if told is not None else (), notes=notes,
        )  # fmt: skip
    env = {**_on_loopback(here), **env, "PYTHONFAULTHANDLER": "1"}
    port = config["use_port"]
    return Way(
        SIDE_BY_SIDE, program.words(unbuffered=True), env, f"{place.words}, {threads} each",
        without=_OF_TORCHRUN, num_ranks=place.num_ranks,
        port=None if port in here.busy_ports else port or None,
        notes=(*notes, *rendezvous.chosen_anew(port, here.busy_ports)),
        world_size=place.num_ranks,
    )  # fmt: skip


def rank_environment(rank: int, size: int, port: int) -> dict[str, str]:
    """Give the variables by which a rank of one machine knows its place, under torchrun's names."""
    return {
        **torchruns_names(Placement(rank, size, rank, size)),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _asks_for_processes(config: RunConfig, torchrun: rendezvous.Torchrun) -> bool:
    """Tell whether the command line itself says how many processes there shall be, or where."""
    names = ("num_processes", "num_nodes", "node_rank")
    return bool(torchrun.least or torchrun.per_machine or torchrun.is_standalone) or any(
        config.origin(name).is_asked for name in names
    )


def _told(program: Program, config: RunConfig, told: Told, here: Here) -> Way:
    env = {**config.environment(), **_in_torchruns_names(told, here.env)}
    if "OMP_NUM_THREADS" not in here.env:
        env.setdefault("OMP_NUM_THREADS", str(max(1, here.num_cores // told.local_size)))
    headline = f"rank {told.rank} of {told.size}, as {told.by} tells"
    return Way(
        TOLD, program.words(), env, headline, num_ranks=told.local_size, speaks=told.rank == 0,
        world_size=told.size,
    )  # fmt: skip


def _in_torchruns_names(told: Told, env: Mapping[str, str]) -> dict[str, str]:
    """Tell the place under the names that every script reads; what is there already stays."""
    names = torchruns_names(told)
    meeting = "env://" if told.by == "torchrun" else meeting_place(env)
    if meeting != "env://":
        names["MASTER_ADDR"], _, names["MASTER_PORT"] = meeting[len("tcp://") :].rpartition(":")
    return {name: value for name, value in names.items() if name not in env}


def _environment(config: RunConfig, place: Local, here: Here) -> tuple[dict[str, str], str]:
    """Give what the ranks' environment says of the run, and their threads in words."""
    env = {**config.environment(), **place.env}
    given = config["num_cpu_threads_per_process"]
    num = given or max(1, here.num_cores // place.num_ranks)
    if "OMP_NUM_THREADS" not in here.env:  # which may have a number for each level
        env["OMP_NUM_THREADS"] = str(num)
    elif config.origin("num_cpu_threads_per_process").kind == "environment":
        env.pop("OMP_NUM_THREADS", None)
    return env, counted(num, "thread")


def _crowd(place: Local, here: Here) -> tuple[str, ...]:
    return tuple(crowd(place.num_ranks, here.num_cores)) if place.kind == "cpu" else ()


def _on_loopback(here: Here) -> dict[str, str]:
    """Keep gloo's connections inside this machine, unless somebody said where they go."""
    if "GLOO_SOCKET_IFNAME" in here.env:
        return {}
    return {"GLOO_SOCKET_IFNAME": LOOPBACK}


def _agent(
    program: Program,
    config: RunConfig,
    torchrun: rendezvous.Torchrun,
    here: Here,
    place: Local,
    env: Mapping[str, str],
    threads: str,
) -> Way:
    words = program.words(True)
    if torchrun.is_run_path:
        words = _script_alone(program)
    meeting = rendezvous.meeting(config, torchrun, place.num_ranks, here.address, here.busy_ports)
    inside = _on_loopback(here) if meeting.is_one_machine else here.interface
    return Way(
        AGENT,
        (sys.executable, "-c", _BE_AGENT, *meeting.words, "--", *words),
        {
            **{name: value for name, value in inside.items() if name not in here.env},
            **env,
            "PYTHONFAULTHANDLER": "1",
            # a second store in the first rank, which a machine that joins late never finds
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        },
        f"{place.words} on {meeting.machines}, {threads} each",
        without=_OF_TORCHRUN,
        num_ranks=place.num_ranks,
        notes=(*place.notes, *_crowd(place, here), *meeting.notes),
        world_size=place.num_ranks * config["num_nodes"],
    )


def _script_alone(program: Program) -> tuple[str, ...]:
    """Give the words of a script that torch runs without another interpreter.

    Errors: ConfigError for what is no script.
    """
    if program.how != "script":
        raise ConfigError(
            f"{rendezvous.RUN_PATH} with {program.name}, which is a {program.how}",
            "torch runs the file of a script by runpy then, and nothing else",
            f"name a script, or leave {rendezvous.RUN_PATH} out",
        )
    return (os.path.abspath(program.name), *program.arguments)

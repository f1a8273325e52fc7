"""``notebook_launcher``: check, plan, choose how to start, run, and give the result.

Nothing of the kernel changes by a launch: no environment variable, signal handler, thread count
or open file is different afterwards.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from notebook_accel.config.catalog.setting import DEFAULT_PRECISION, unsaid
from notebook_accel.config.fields import check_switches
from notebook_accel.config.placement import DEFAULT_PORT
from notebook_accel.config.resolve import RunConfig
from notebook_accel.config.schema import LaunchSettings
from notebook_accel.config.settings import SETTINGS
from notebook_accel.config.wishes import Strategy
from notebook_accel.config.words import counted
from notebook_accel.errors import ConfigError
from notebook_accel.events import context
from notebook_accel.events.sinks import Sink
from notebook_accel.launch import (
    devices,
    display,
    failure,
    fake,
    forkserver,
    inline,
    lead,
    machines,
    preflight,
    start,
)
from notebook_accel.launch.asked import HasConfig, asked, naming_the_source
from notebook_accel.launch.attempts import attempts, view
from notebook_accel.launch.elastic import Meeting
from notebook_accel.launch.handle import Run, next_number
from notebook_accel.launch.plan import LaunchPlan, is_fake, plan
from notebook_accel.launch.remembered import remember
from notebook_accel.launch.result import RunResult
from notebook_accel.launch.run import Order
from notebook_accel.launch.streams import Console, say

# Defaults of the call that a file may replace, unlike the same values when somebody writes them.
_UNSAID: dict[str, Any] = {
    name: unsaid(SETTINGS[name].default)
    for name in (
        "node_rank", "num_nodes", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "max_restarts",
        "monitor_interval", "start_method", "on_interrupt",
    )
} | {"master_addr": unsaid("127.0.0.1")}  # fmt: skip


def notebook_launcher(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    num_processes: int | None = None,
    mixed_precision: str = DEFAULT_PRECISION,
    use_port: str | int | None = None,
    master_addr: str = _UNSAID["master_addr"],
    node_rank: int = _UNSAID["node_rank"],
    num_nodes: int = _UNSAID["num_nodes"],
    rdzv_backend: str = _UNSAID["rdzv_backend"],
    rdzv_endpoint: str = _UNSAID["rdzv_endpoint"],
    rdzv_conf: Mapping[str, Any] | None = None,
    rdzv_id: str = _UNSAID["rdzv_id"],
    max_restarts: int = _UNSAID["max_restarts"],
    monitor_interval: float = _UNSAID["monitor_interval"],
    log_line_prefix_template: str | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    device: str | int | list[int] | None = None,
    start_method: str = _UNSAID["start_method"],
    block: bool = True,
    timeout_s: float | None = None,
    env: Mapping[str, str] | None = None,
    on_interrupt: str = _UNSAID["on_interrupt"],
    config: str | os.PathLike[str] | RunConfig | HasConfig | None = None,
    join: bool = False,
    trusted_network: bool = False,
    strategy: Strategy | str | None = None,
) -> Any:
    """Run ``function(*args, **kwargs)`` on several processes and return what each one returned.

    Every rank calls the same function; ``Accelerator()`` inside it knows which rank it is. Objects
    of the notebook can be used freely: each worker has its own copy, and only what the function
    returns comes back (modules, tensors and plain data, moved to the CPU).

    args, kwargs: the function's arguments; ``args`` is a tuple or a list.
    num_processes: ranks on this machine; None: as many as there are accelerators, else 1.
    mixed_precision: "no", "fp16", "bf16" or "fp8", for every ``Accelerator()`` in the function.
    use_port, master_addr: where the ranks meet; by default a free port of this machine.
    node_rank, num_nodes: this machine's number, and how many take part: every machine runs the
        same cell, with the first one's ``master_addr`` and ``use_port``.
    rdzv_backend, rdzv_endpoint, rdzv_conf, rdzv_id: how several machines meet, as in torch
        elastic: "static" (numbered by ``node_rank``) or "c10d" (numbered by torch).
    max_restarts: how often all ranks, of all machines, start again after a failure.
    monitor_interval: seconds between two looks at the other machines; ranks are not polled.
    log_line_prefix_template: what stands before each line of a rank, as ``"[${rank}] "``.
    device: None or "auto", "cpu", "cuda", "mps", "auto-or-cpu" (CPU ranks where accelerators are
        missing), the number of one GPU, or a list of numbers, which picks and orders; "fake" lets
        one process play rank 0 of all ("fake:17": rank 17), to check a layout and its memory.
    start_method: "auto", "fork", "forkserver", "spawn" or "inline" (one rank, in this process).
    block: False returns a ``Run`` at once, with ``wait()``, ``stop()``, ``kill()`` and
        the curves so far; it can also be awaited.
    timeout_s: seconds after which the run is ended, with where each rank was.
    env: environment variables for the workers.
    on_interrupt: "raise" RunInterrupted, which carries the partial result, or "return" it.
    config: a configuration file, a RunConfig or a picker, for what is not given here; None: the
        default file, if there is one. There ``num_processes`` counts the ranks of all machines.
    join: instead of running the same cell, the other machines join by the line that is printed
        (``notebook-accel join HOST:PORT``); all ranks then report here.
    trusted_network: allow a ``master_addr`` that is not loopback to be joined at: the ranks' own
        connections are not protected.
    strategy: how models lie across ranks, for every ``Accelerator()`` in the function that says
        nothing else: ``DDP(...)``, ``FSDP(...)``, ``TensorParallel(...)``, ``Pipeline(...)``, or
        a word ("fsdp").

    Returns: a ``RunResult``: ``run[rank]``, ``run.history["loss"]``, ``run.logs``.
    Ranks: called in the notebook's own process; a call inside a worker is refused.
    Errors: ConfigError and LaunchError before anything starts; the function's own exception,
        raised by the first rank that failed; WorkerDied; RunTimeout; RunInterrupted.
    """
    preflight.check_call(function, args, kwargs, num_processes=num_processes, env=env)
    check_switches("notebook_launcher", block=block, join=join, trusted_network=trusted_network)
    arguments = {
        "num_processes": num_processes, "mixed_precision": mixed_precision, "device": device,
        "start_method": start_method, "max_restarts": max_restarts, "timeout_s": timeout_s,
        "on_interrupt": on_interrupt, "num_nodes": num_nodes, "node_rank": node_rank,
        "master_addr": master_addr, "rdzv_backend": rdzv_backend, "rdzv_endpoint": rdzv_endpoint,
        "rdzv_id": rdzv_id, "monitor_interval": monitor_interval,
        "log_line_prefix_template": log_line_prefix_template, "strategy": strategy,
    }  # fmt: skip
    wanted = asked(config, arguments, env)
    settings, told = wanted.settings, wanted.config
    preflight.refuse_inside_ranks(settings.num_nodes, os.environ)
    _check_rendezvous(told.rdzv_backend)
    with naming_the_source(told):
        placed = _placed(settings, {**os.environ, **wanted.env})
    wanted.check_strategy(placed.placements[0])
    call = (function, tuple(args), dict(kwargs or {}))
    job = start.Job(*call, then=remember(*call))
    if settings.start_method == "inline":
        _say_notes(wanted.notes)
        return inline.run(job, placed, wanted.words, wanted.env, view)
    port = _port(told.use_port if use_port is None else use_port, told, join)
    address = told.rdzv_endpoint.partition(":")[0] or told.master_addr or master_addr
    meeting = _meeting(told, address, port, len(placed.placements), rdzv_conf)
    if join:
        lead.check(meeting, trusted_network)

    number = next_number()
    name = f"run {number}" if number > 1 else ""

    def order() -> Order:
        choice = start.choose(settings.start_method)
        _say_notes((*wanted.notes, *placed.notes), name)
        say(_launch_line(placed, choice), name)
        start.prepare(choice.method)
        return Order(
            job, placed, choice, wanted.words, wanted.env, address, port,
            settings.timeout_s, settings.on_interrupt, name=name,
        )  # fmt: skip

    cell = display.Cell()

    def sinks(first: int = 0, num_ranks: int = len(placed.placements)) -> list[Sink]:
        how: Any = {} if block else {"write": cell.write}  # another cell may run by then
        template = told.log_line_prefix_template
        console = Console(num_ranks, template, first_rank=first, name=name, **how)
        return [console, display.Republisher(cell)]

    def go(handle: Run | None = None) -> RunResult:
        if join:
            return lead.lead(meeting, order, sinks, handle, settings.device, settings.start_method)
        if settings.num_nodes > 1 and not is_fake(settings.device):
            return machines.same_cell(meeting, order, sinks, handle)
        return attempts(order, sinks, settings.max_restarts, handle)

    if block:
        return failure.without_our_frames(go)
    return Run(go, number)


def debug_launcher(
    function: Callable[..., Any], args: Sequence[Any] = (), num_processes: int = 2
) -> RunResult:
    """Run ``function`` on forked CPU processes over gloo, to debug what several ranks do.

    Ranks: called in the main process.
    Errors: as ``notebook_launcher``.
    """
    result: RunResult = notebook_launcher(
        function, args, num_processes, device="cpu", config=RunConfig()
    )
    return result


def _placed(settings: LaunchSettings, env: Mapping[str, str]) -> LaunchPlan:
    """Say who runs where, on what is there or as one rank of what is not."""
    cores = devices.usable_cores()
    if is_fake(settings.device):
        return fake.plan_fake(
            str(settings.device), settings.num_processes, settings.num_nodes, cores
        )
    placed = plan(
        settings.num_processes, settings.device, devices.accelerators(env), cores,
        settings.node_rank, settings.num_nodes,
    )  # fmt: skip
    preflight.check_files(len(placed.placements))
    return placed


def _meeting(
    told: RunConfig, address: str, port: int | None, num_ranks: int, conf: Mapping[str, Any] | None
) -> Meeting:
    return Meeting(
        address, port or 0, told.rdzv_id, told.num_nodes, told.node_rank, num_ranks,
        told.max_restarts, told.rdzv_backend or "static", told.monitor_interval, dict(conf or {}),
    )  # fmt: skip


def _say_notes(notes: Sequence[str], name: str = "") -> None:
    for note in notes:
        say(f"note: {note}", name)


def _launch_line(placed: LaunchPlan, choice: start.Choice) -> str:
    threads = f"{counted(placed.num_threads, 'thread')} each"
    return f"Launching on {placed.device_words}, {threads}, by {choice.method} ({choice.reason})."


def _check_rendezvous(backend: str) -> None:
    if backend not in ("", "static", "c10d"):
        raise ConfigError(
            f"rdzv_backend={backend!r} is not supported",
            "machines meet at a store that one of them serves; other services are not looked for",
            'pass "static" (node_rank numbers the machines) or "c10d" (torch numbers them)',
        )


def _port(use_port: str | int | None, told: RunConfig, join: bool = False) -> int | None:
    """Read the port, from the endpoint first; None means any free one of this machine."""
    num_nodes = 1 if join else told.num_nodes  # who joins is told the port
    wanted = told.rdzv_endpoint.partition(":")[2] or use_port
    if wanted in (None, ""):
        return DEFAULT_PORT if num_nodes > 1 else None
    text = str(wanted)
    if isinstance(wanted, bool) or not text.isdigit() or not 0 <= int(text) < 65536:
        raise ConfigError(
            f"use_port={wanted!r} is not a port",
            "a port is a number from 0 to 65535; 0 takes a free one",
            "leave out use_port: a free port is taken",
        )
    if int(text) == 0 and num_nodes > 1:
        raise ConfigError(
            "use_port=0 with several machines",
            "the other machines must know the port beforehand",
            f"pass the same free port on every machine, for example {DEFAULT_PORT}",
        )
    return int(text)


def wants_early_forkserver(in_notebook: bool, in_worker: bool, kinds: Sequence[str]) -> bool:
    """Tell whether the forkserver's imports should begin before the first launch asks for it.

    In a notebook with GPUs some cell will have asked the driver before the launch, and forks are
    useless then; the server imports torch while the person still writes.
    """
    return in_notebook and not in_worker and "cuda" in kinds


if wants_early_forkserver(
    "ipykernel" in sys.modules,
    context.current() is not None,
    [device.kind for device in devices.accelerators()] if "ipykernel" in sys.modules else [],
):
    forkserver.running()

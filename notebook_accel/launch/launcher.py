"""``notebook_launcher``: check, plan, choose how to start, run, and give the result.

Nothing of the kernel changes by a launch: no environment variable, signal handler, thread count
or open file is different afterwards.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from notebook_accel.config.schema import DEFAULT_PRECISION, LaunchSettings, given
from notebook_accel.errors import ConfigError
from notebook_accel.events import context
from notebook_accel.events.sinks import Sink
from notebook_accel.launch import (
    devices,
    display,
    failure,
    forkserver,
    inline,
    machines,
    preflight,
    start,
)
from notebook_accel.launch.attempts import attempts, view
from notebook_accel.launch.elastic import Meeting
from notebook_accel.launch.handle import Run
from notebook_accel.launch.plan import LaunchPlan, plan
from notebook_accel.launch.result import RunResult
from notebook_accel.launch.run import Order
from notebook_accel.launch.streams import Console

_MULTI_NODE_PORT = 29500


def notebook_launcher(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    num_processes: int | None = None,
    mixed_precision: str = DEFAULT_PRECISION,
    use_port: str | int | None = None,
    master_addr: str = "127.0.0.1",
    node_rank: int = 0,
    num_nodes: int = 1,
    rdzv_backend: str = "static",
    rdzv_endpoint: str = "",
    rdzv_conf: Mapping[str, Any] | None = None,
    rdzv_id: str = "none",
    max_restarts: int = 0,
    monitor_interval: float = 0.1,
    log_line_prefix_template: str | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    device: str | int | list[int] | None = None,
    start_method: str = "auto",
    block: bool = True,
    timeout_s: float | None = None,
    env: Mapping[str, str] | None = None,
    on_interrupt: str = "raise",
) -> Any:
    """Run ``function(*args, **kwargs)`` on several processes and return what each one returned.

    Every rank calls the same function; ``Accelerator()`` inside it knows which rank it is. Objects
    of the notebook can be used freely: each worker has its own copy, and only what the function
    returns comes back (modules, tensors and plain data, moved to the CPU).

    args, kwargs: the function's arguments; ``args`` is a tuple or a list.
    num_processes: ranks on this machine; None: as many as there are accelerators, else 1.
    mixed_precision: "no", "fp16" or "bf16", for every ``Accelerator()`` in the function.
    use_port, master_addr: where the ranks meet; by default a free port of this machine.
    node_rank, num_nodes: this machine's number, and how many take part: every machine runs the
        same cell, with the first one's ``master_addr`` and ``use_port``.
    rdzv_backend, rdzv_endpoint, rdzv_conf, rdzv_id: how several machines meet, as in torch
        elastic: "static" (numbered by ``node_rank``) or "c10d" (numbered by torch).
    max_restarts: how often all ranks, of all machines, start again after a failure.
    monitor_interval: seconds between two looks at the other machines; ranks are not polled.
    log_line_prefix_template: what stands before each line of a rank, as ``"[${rank}] "``.
    device: None or "auto", "cpu", "cuda", "mps", "auto-or-cpu" (CPU ranks where accelerators are
        missing), the number of one GPU, or a list of numbers, which picks and orders.
    start_method: "auto", "fork", "forkserver", "spawn" or "inline" (one rank, in this process).
    block: False returns a ``Run`` at once, with ``wait()``, ``stop()``, ``kill()`` and
        the curves so far; it can also be awaited.
    timeout_s: seconds after which the run is ended, with where each rank was.
    env: environment variables for the workers.
    on_interrupt: "raise" RunInterrupted, which carries the partial result, or "return" it.

    Returns: a ``RunResult``: ``run[rank]``, ``run.history["loss"]``, ``run.logs``.
    Ranks: called in the notebook's own process; a call inside a worker is refused.
    Errors: ConfigError and LaunchError before anything starts; the function's own exception,
        raised by the first rank that failed; WorkerDied; RunTimeout; RunInterrupted.
    """
    preflight.check_call(function, args, kwargs, num_processes=num_processes, env=env)
    settings = LaunchSettings(
        num_processes=num_processes,
        mixed_precision=mixed_precision,
        device=device,
        start_method=start_method,
        max_restarts=max_restarts,
        timeout_s=timeout_s,
        on_interrupt=on_interrupt,
        num_nodes=num_nodes,
        node_rank=node_rank,
    )
    _check_rendezvous(rdzv_backend)
    placed = plan(
        num_processes,
        device,
        devices.accelerators({**os.environ, **(env or {})}),
        devices.usable_cores(),
        node_rank,
        num_nodes,
    )
    job = start.Job(function, tuple(args), dict(kwargs or {}))
    given_settings = {"mixed_precision": str(mixed_precision)} if given(mixed_precision) else {}
    if start_method == "inline":
        return inline.run(job, placed, given_settings, dict(env or {}), view)
    port = _port(use_port, rdzv_endpoint, num_nodes)
    address = rdzv_endpoint.partition(":")[0] or master_addr
    meeting = Meeting(
        address, port or 0, rdzv_id, num_nodes, node_rank, len(placed.placements), max_restarts,
        rdzv_backend or "static", monitor_interval, dict(rdzv_conf or {}),
    )  # fmt: skip

    def order() -> Order:
        choice = start.choose(start_method)
        for note in placed.notes:
            print(f"note: {note}")
        print(_launch_line(placed, choice))
        start.prepare(choice.method)
        return Order(
            job, placed, choice, given_settings, dict(env or {}), address, port,
            settings.timeout_s, settings.on_interrupt,
        )  # fmt: skip

    cell = display.Cell()

    def sinks(first: int = 0, num_ranks: int = len(placed.placements)) -> list[Sink]:
        how = {} if block else {"write": cell.write}  # another cell may run by then
        console = Console(num_ranks, log_line_prefix_template, first_rank=first, **how)
        return [console, display.Republisher(cell)]

    def go(handle: Run | None = None) -> RunResult:
        if num_nodes > 1:
            return machines.same_cell(meeting, order, sinks, handle)
        return attempts(order, sinks, max_restarts, handle)

    if block:
        return failure.without_our_frames(go)
    return Run(go)


def debug_launcher(
    function: Callable[..., Any], args: Sequence[Any] = (), num_processes: int = 2
) -> RunResult:
    """Run ``function`` on forked CPU processes over gloo, to debug what several ranks do.

    Ranks: called in the main process.
    Errors: as ``notebook_launcher``.
    """
    result: RunResult = notebook_launcher(function, args, num_processes, device="cpu")
    return result


def _launch_line(placed: LaunchPlan, choice: start.Choice) -> str:
    threads = f"{placed.num_threads} thread{'s' if placed.num_threads > 1 else ''} each"
    return f"Launching on {placed.device_words}, {threads}, by {choice.method} ({choice.reason})."


def _check_rendezvous(backend: str) -> None:
    if backend not in ("", "static", "c10d"):
        raise ConfigError(
            f"rdzv_backend={backend!r} is not supported",
            "machines meet at a store that one of them serves; other services are not looked for",
            'pass "static" (node_rank numbers the machines) or "c10d" (torch numbers them)',
        )


def _port(use_port: str | int | None, endpoint: str, num_nodes: int) -> int | None:
    """Read the port, from the endpoint first; None means any free one of this machine."""
    wanted = endpoint.partition(":")[2] or use_port
    if wanted in (None, ""):
        return _MULTI_NODE_PORT if num_nodes > 1 else None
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
            f"pass the same free port on every machine, for example {_MULTI_NODE_PORT}",
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

"""How a worker process comes to be: fork when that is provably safe, else a fresh process.

``choose`` decides and says why; ``start`` does it. A fork inherits everything and starts in
milliseconds, but cannot use an accelerator its parent has opened, and would hang in OpenMP after
its parent ran a parallel region: the pools are put to rest just before the fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import linecache
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from multiprocess import spawn as interpreter

from notebook_accel.errors import LaunchError
from notebook_accel.events import lines, tasks
from notebook_accel.launch import forkserver, openers, wire, worker
from notebook_accel.launch.crew import Children, Crew
from notebook_accel.launch.memory import anonymous_file
from notebook_accel.launch.remembered import Then
from notebook_accel.launch.seat import Lane, Seat

# What every training worker imports before its first optimizer step. Imported once, before the
# fork, the step comes 24 times sooner and a worker needs a tenth of the private memory.
WARM = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.distributed.algorithms.join",
    "torch.nn.parallel",
    "torch.utils.data",
    "notebook_accel.runtime.accelerator",
    "notebook_accel.ranks.files",
    "notebook_accel.ranks.raw",
)
_NOTEBOOK = ("ipykernel.zmqshell", "ipywidgets", "comm")  # the first is what tqdm.auto looks for
_OPENMP = re.compile(r"/lib(gomp|omp|iomp5)[^/]*\.(so|dylib)[^/]*$")
_HARD_PAUSE = 2


def warm(
    in_notebook: bool = False, imported: Callable[[float], None] = lambda num_modules: None
) -> None:
    """Import what workers will need, once, before they are forked; ``imported`` hears of each.

    Some of these imports set environment variables; the kernel's stay as they were.
    """
    before = dict(os.environ)
    for name in (*WARM, *(_NOTEBOOK if in_notebook else ())):
        importlib.import_module(name)
        imported(1)
    for name in os.environ.keys() - before.keys():
        del os.environ[name]


# ── which way ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Choice:
    """A start method and the reason for it, in words for the launch line."""

    method: str
    reason: str


def choose(wanted: str) -> Choice:
    """Decide how workers start; refuse a method that cannot work here.

    Errors: LaunchError for fork after an accelerator was opened, and on systems without it.
    """
    if sys.platform == "win32":
        raise LaunchError(
            "workers cannot be started on Windows",
            "they need descriptors and signals that Windows does not have",
            "run the notebook in WSL 2, or pass start_method='inline'",
        )
    if wanted == "auto" and sys.platform != "linux":
        return Choice("spawn", "forking is not safe on this system")
    if wanted not in ("auto", "fork"):
        return Choice(wanted, "as asked")
    spoiled = spoiled_accelerator() or _open_group()
    if wanted == "fork" and spoiled:
        raise LaunchError(
            f"cannot fork workers: {openers.named(spoiled)}",
            "a forked process cannot use an accelerator or a process group that its parent opened",
            "leave out start_method (fresh workers are started then), or restart the kernel and"
            " keep device calls inside the function",
        )
    if wanted == "fork":
        return Choice("fork", "as asked")
    if spoiled:
        return Choice("forkserver", openers.named(spoiled))
    return Choice("fork", "no accelerator is open in this kernel")


def spoiled_accelerator(files: str = openers.DEVICE_FILES) -> str:
    """Say what makes a fork useless for an accelerator here; "" if nothing does.

    ``/dev/nvidiactl`` alone is no sign: who only reads a GPU's load (NVML) holds it open too.
    """
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda"):
        if torch.cuda.is_initialized():
            return "CUDA is open in this kernel"
        if torch.xpu.is_initialized():
            return "XPU is open in this kernel"
    for path in openers.open_files(os.getpid()):
        if re.match(files, path):
            return f"{path} is open in this kernel"
    if torch is not None and hasattr(torch, "cuda") and _child_is_spoiled(torch):
        return "a forked process could not use CUDA: something asked the driver in this kernel"
    return ""


def _open_group() -> str:
    dist = sys.modules.get("torch.distributed")
    opened = dist is not None and dist.is_available() and dist.is_initialized()
    return "a process group of torch.distributed is open in this kernel" if opened else ""


def quiet_fork() -> int:
    """Fork, without Python's general warning (3.12 on) about doing so beside other threads.

    What makes it dangerous here is dealt with: OpenMP rests, and the child's first act is its door.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _child_is_spoiled(torch: Any) -> bool:
    """Fork a child that only asks torch whether its accelerators are still good."""
    backends = [torch.cuda, torch.xpu, getattr(torch, "mtia", torch.xpu)]
    if torch.version.cuda is None and torch.version.hip is None and not torch.xpu._is_compiled():
        return any(backend._is_in_bad_fork() for backend in backends)  # nothing a fork could spoil
    pid = quiet_fork()
    if pid == 0:
        code = 1
        try:
            code = 1 if any(backend._is_in_bad_fork() for backend in backends) else 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] != 0


def prepare(method: str) -> None:
    """Do once what the start method needs: warm imports here, or a forkserver on its way."""
    if method == "forkserver":
        surroundings()  # explains a removed directory, in which a server could not start either
        forkserver.running()
    with tasks.counting("importing what workers need", len(WARM), "modules") as imported:
        if method == "fork":
            warm(imported=imported)
        else:
            importlib.import_module("torch")


# ── starting ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Job:
    """The call that every rank makes; ``then`` is what the notebook held as it was asked for."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    then: Then | None = field(default=None, repr=False, kw_only=True)


@dataclass(frozen=True)
class PackedJob(Job):
    """A call that was packed on another machine: the file ``payload``, which only workers open."""

    payload: int = -1


def start(method: str, job: Job, seats: list[tuple[Lane, Seat]], ours: list[int]) -> Crew:
    """Start one worker for every seat; ``ours`` are descriptors they must not inherit.

    Errors: LaunchError naming the variable that cannot travel to a fresh worker.
    """
    if method == "fork":
        return _fork(job, seats, ours)
    payload, num_moved = pack(job)
    try:
        if num_moved:
            print(f"note: {num_moved} tensors on a device travel to the workers as CPU tensors")
        return _serve(seats, payload) if method == "forkserver" else _spawn(seats, payload)
    finally:
        os.close(payload)


def _fork(job: Job, seats: list[tuple[Lane, Seat]], ours: list[int]) -> Crew:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    rest_openmp()
    parent = os.getpid()
    pids: list[int] = []
    held = [*ours]
    if isinstance(job, PackedJob):
        load = worker.fresh_call(job.payload)
    else:
        load = worker.forked_call(job.function, job.args, job.kwargs)
    gc.freeze()  # so that no collection in a child touches, and copies, the kernel's pages
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        for lane, seat in seats:
            held += [lane.stdout, lane.stderr, lane.events]
            pid = quiet_fork()
            if pid == 0:
                others = [fd for other, _ in seats if other is not lane for fd in other.theirs]
                worker.enter(replace(seat, parent=parent), load, [*held, *others])
            pids.append(pid)
            lane.close_theirs()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.setpgid(pid, pid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        gc.unfreeze()
    return Children(pids)


def rest_openmp() -> None:
    """Put the thread pools of every OpenMP library in this process to rest.

    A forked child believes the pool's threads are there and waits for them for ever. Libraries
    are found by path: scikit-learn and others bring a second copy. The next parallel region
    starts a new pool. Source: OpenMP 5.0, section 3.2.44, omp_pause_resource_all.
    """
    for path in _openmp_libraries():
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(path).omp_pause_resource_all(_HARD_PAUSE)


def _openmp_libraries() -> list[str]:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = {line.split(None, 5)[5].strip() for line in maps if line.count("/")}
    except OSError:
        return []
    return sorted(path for path in paths if _OPENMP.search(path))


def _serve(seats: list[tuple[Lane, Seat]], payload: int) -> Crew:
    around = surroundings()
    server = forkserver.running()
    served = forkserver.ServedCrew(server, len(seats))
    for lane, seat in seats:
        served.start(seat, around, payload)
        lane.close_theirs()
    return served


def _spawn(seats: list[tuple[Lane, Seat]], payload: int) -> Crew:
    around = surroundings()
    pids = []
    for lane, seat in seats:
        fds = [*seat.fds(), payload]
        letter = anonymous_file("seat")  # not on the command line: the environment holds secrets
        os.write(letter, pickle.dumps((os.getpid(), seat, fds, around)))
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            f"from notebook_accel.launch.start import spawned; spawned({letter})"
        )
        process = subprocess.Popen(
            [interpreter.get_executable(), "-c", code],
            pass_fds=[*fds, letter],
            start_new_session=True,
        )
        process.returncode = 0  # its end is the crew's business, not subprocess's
        pids.append(process.pid)
        os.close(letter)
        lane.close_theirs()
    return Children(pids)


def surroundings() -> dict[str, Any]:
    """What a fresh worker takes over from this process before anything is unpickled.

    Errors: LaunchError when the working directory has been removed.
    """
    try:
        cwd = os.getcwd()
    except FileNotFoundError as error:
        raise LaunchError(
            "the working directory of this kernel no longer exists",
            "fresh workers start in the directory that the kernel is in",
            "go to another one first: os.chdir(...)",
        ) from error
    return {
        "env": dict(os.environ),
        "path": list(sys.path),
        "argv": list(sys.argv),
        "cwd": cwd,
    }


def pack(job: Job) -> tuple[int, int]:
    """Write the call and the kernel's state to a file; give its descriptor and a count of moves.

    Errors: LaunchError naming the variable that cannot travel.
    """
    if isinstance(job, PackedJob):
        return os.dup(job.payload), 0
    import torch

    numpy = sys.modules.get("numpy")
    encoder = wire.Encoder(keep_main=True)
    message = {
        "function": job.function,
        "args": job.args,
        "kwargs": job.kwargs,
        "classes": encoder.main_classes,  # filled while the parts before it are pickled
        "cells": dict(_cells()),
        "numbers": lines.cell_numbers(),
        "random": random.getstate(),
        "numpy": numpy.random.get_state() if numpy is not None else None,
        "torch": torch.get_rng_state(),
        "dtype": torch.get_default_dtype(),
    }
    try:
        encoder.dump(message)
    except Exception as reason:
        parts = wire.parts_of(job.function, job.args, job.kwargs)
        raise wire.cannot_travel(parts, reason) from reason
    payload = anonymous_file("payload")
    wire.write(payload, encoder)
    return payload, encoder.moved


def _cells() -> Iterator[tuple[str, Any]]:
    """The sources of the notebook's cells, so that tracebacks in a worker show their lines."""
    for filename, entry in list(linecache.cache.items()):
        if len(entry) == 4 and ("ipykernel" in filename or filename.startswith("<ipython")):
            yield filename, (entry[0], None, entry[2], entry[3])


def spawned(letter: int) -> None:
    """Be one spawned worker: a fresh interpreter that finds its seat in the file ``letter``."""
    parent, seat, fds, around = pickle.loads(os.pread(letter, os.fstat(letter).st_size, 0))
    os.close(letter)
    warm(seat.in_notebook)
    forkserver.become_fresh_worker(seat, around, fds, parent, [])

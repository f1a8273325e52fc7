"""The door into a worker: from a fresh process to the user's function, and out again.

What happens here, in order: cut the ties to the kernel's own life (signals, sockets, exit
functions), take the seat (streams, environment, threads), call the function, encode what it
returned or raised, run this process's exit functions, leave through ``os._exit``.
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from notebook_accel.errors import Explained, LaunchError, StopRun
from notebook_accel.events import context, lines
from notebook_accel.events.emitter import Emitter
from notebook_accel.events.model import Returned, Started
from notebook_accel.events.pulse import Pulse
from notebook_accel.launch import display, failure, left_behind, streams, ties, wire
from notebook_accel.launch.memory import FlagPage, PulsePage, room_for_ranks
from notebook_accel.launch.seat import Seat

# What looks, on the worker side: at collectives by torch's own names, at files between ranks.
_TORCHS_OWN, _FILES = "notebook_accel.ranks.raw", "notebook_accel.ranks.files"
_kept_alive: list[Any] = []  # the rendezvous store: it serves as long as this process lives


@dataclass(frozen=True)
class Call:
    """What a worker is to do; ``name_of`` names the classes that the kernel knows itself."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name_of: Callable[[type], str | None]


def enter(seat: Seat, load: Callable[[], Call], inherited: list[int]) -> NoReturn:
    """Become the worker of ``seat``, do what ``load`` gives, never return.

    ``inherited`` are descriptors of the starting process that this one must not hold.
    """
    code = 1
    try:
        ties.cut(seat.parent, seat.fds(), inherited)
        _settle(seat)
        code = _work(seat, load)
    except StopRun:
        pass  # another rank failed before this one had begun: there is nothing to tell
    except BaseException:
        traceback.print_exc()
    finally:
        streams.flush()
        os._exit(code)


# ── becoming a worker ─────────────────────────────────────────────────────────────────────────


def _settle(seat: Seat) -> None:
    os.environ.update(seat.env)
    streams.redirect(seat.stdout, seat.stderr, seat.placement.rank)
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR2, file=seat.stacks, all_threads=True)
    import torch

    torch.set_num_threads(seat.num_threads)
    _drop_foreign_iterators()


def _drop_foreign_iterators() -> None:
    """Let loaders whose workers belong to the kernel start workers of their own.

    A loader with persistent workers keeps its live iterator; its processes are the kernel's
    children and would never answer here.
    """
    data = sys.modules.get("torch.utils.data")
    if data is None:
        return
    plain = data.DataLoader.__iter__

    def own_iterator(self: Any) -> Any:
        live = getattr(self, "_iterator", None)
        if live is not None and any(w._parent_pid != os.getpid() for w in live._workers):
            live._shutdown = True  # so that dropping it does not wait for foreign processes
            self._iterator = None
        return plain(self)

    data.DataLoader.__iter__ = own_iterator


# ── working ───────────────────────────────────────────────────────────────────────────────────


def _work(seat: Seat, load: Callable[[], Call]) -> int:
    place = seat.placement
    emitter = Emitter(place.local_rank, seat.events)
    display.forward(emitter, enabled=place.rank == 0, in_notebook=seat.in_notebook)
    slot = PulsePage(seat.flags, place.local_size).slot(place.local_rank)
    pulse = Pulse(place.local_rank, slot, emitter.send) if place.size > 1 else None
    if pulse is not None:
        _look_around(seat, pulse)
    flags = FlagPage(seat.flags)
    worker = context.WorkerContext(place, emitter, flags, seat.settings, pulse=pulse)
    context.enter(worker)
    clean = False
    name_of: Callable[[type], str | None] = lambda cls: None  # noqa: E731 - until the call is here
    try:
        call = load()
        name_of = call.name_of
        if seat.store >= 0:
            _serve_store(seat)
        emitter.send(Started(place.local_rank, os.getpid(), place.device, seat.num_threads))
        before = left_behind.look(call.function) if place.rank == 0 else None
        value = _call(call)
        _make_whole(worker, call, value)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # from here on the result is on its way
        if before is not None and (changes := before.tell(emitter.rank, value)) is not None:
            emitter.send(changes)
        _report_value(seat, emitter, call, value)
        clean = True
    except StopRun:
        _report_stop(seat, emitter, name_of)
    except SystemExit as leaving:
        emitter.send(failure.describe(emitter.rank, leaving))
    except BaseException as failed:
        _report_failure(seat, emitter, failed, name_of)
    _run_exit_functions(worker.at_exit if clean else [])
    return 0 if clean else 1


def _look_around(seat: Seat, pulse: Pulse) -> None:
    place = seat.placement
    importlib.import_module(_TORCHS_OWN).watch_torch(pulse, place)
    files = importlib.import_module(_FILES)
    room = room_for_ranks(seat.flags, place.local_size, files.NUM_BYTES)
    files.watch_files(room, place, pulse)


def _make_whole(worker: context.WorkerContext, call: Call, value: Any) -> None:
    """Let the runtime bring together what lies across ranks and is in what they return."""
    for bring in worker.before_return:
        bring(lambda: wire.Encoder(call.name_of).dump(value))


def _call(call: Call) -> Any:
    worker = os.getpid()
    try:
        return call.function(*call.args, **call.kwargs)
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise
        return None
    finally:
        if os.getpid() != worker:  # the function's own fork came back as well: not ours to report
            failed = sys.exc_info()[0] is not None
            if failed:
                traceback.print_exc()
            streams.flush()
            os._exit(1 if failed else 0)


def _serve_store(seat: Seat) -> None:
    """Serve the rendezvous on the listening socket that the kernel bound for this run."""
    import datetime

    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    place = seat.placement
    _kept_alive.append(
        TCPStore(
            seat.env["MASTER_ADDR"],
            int(seat.env["MASTER_PORT"]),
            world_size=place.size,
            is_master=True,
            timeout=datetime.timedelta(seconds=300),
            wait_for_workers=False,
            master_listen_fd=seat.store,
        )
    )


def _report_value(seat: Seat, emitter: Emitter, call: Call, value: Any) -> None:
    encoder = wire.Encoder(call.name_of)
    try:
        encoder.dump(value)
    except Exception as reason:
        path, part = wire.culprit(value)
        where = f" at {path}" if path else ""
        raise LaunchError(
            f"what rank {seat.placement.rank} returned{where} ({type(part).__name__}) cannot "
            f"travel to the notebook: {reason.what if isinstance(reason, Explained) else reason}",
            "a worker is another process, and results cross pickled",
            reason.fix
            if isinstance(reason, Explained)
            else "return tensors, modules, numbers, strings and containers of them",
        ) from reason
    emitter.send(Returned(emitter.rank, wire.write(seat.result, encoder)))


def _report_stop(seat: Seat, emitter: Emitter, name_of: Callable[[type], str | None]) -> None:
    """Send home what a stopped run leaves: what the runtime offers, from rank 0."""
    worker = context.current()
    assert worker is not None
    place = worker.placement
    saved = [salvage() for salvage in worker.salvage] if place.rank == 0 else []
    encoder = wire.Encoder(name_of)
    encoder.dump([part for parts in saved for part in parts])
    emitter.send(Returned(emitter.rank, wire.write(seat.result, encoder), stopped=True))


def _report_failure(
    seat: Seat, emitter: Emitter, failed: BaseException, name_of: Callable[[type], str | None]
) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    num_bytes = 0
    try:
        encoder = wire.Encoder(name_of)
        encoder.dump(failed)
        num_bytes = wire.write(seat.result, encoder)
    except Exception:  # then its description travels alone, which is always possible
        num_bytes = 0
    streams.flush()
    emitter.send(failure.describe(emitter.rank, failed, num_bytes))


def _run_exit_functions(own: list[Callable[[], None]]) -> None:
    """Do what an ending interpreter does; the kernel ends us if it takes too long."""
    for leave in [*reversed(own), threading._shutdown, atexit._run_exitfuncs]:  # type: ignore[attr-defined]
        try:
            leave()
        except BaseException:
            traceback.print_exc()


# ── calls by way in ───────────────────────────────────────────────────────────────────────────


def _known_classes() -> Callable[[type], str | None]:
    """Name the classes that ``__main__`` holds now: the kernel has the same under these names."""
    known = dict(vars(sys.modules["__main__"]))

    def name_of(cls: type) -> str | None:
        head, *rest = cls.__qualname__.split(".")
        found = known.get(head)
        for part in rest:
            found = getattr(found, part, None)
        return cls.__qualname__ if found is cls else None

    return name_of


def forked_call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[], Call]:
    """The way in of a forked worker: all is here, but Python reseeds ``random`` in a fork."""
    state = random.getstate()
    numbers = lines.cell_numbers()  # IPython before 8 finds them by the kernel's process id

    def load() -> Call:
        lines.tell_cells(numbers)
        random.setstate(state)
        return Call(function, args, kwargs, _known_classes())

    return load


def fresh_call(payload: int) -> Callable[[], Call]:
    """The way in of a fresh worker: read the call and the kernel's state from a file."""

    def load() -> Call:
        import linecache
        import types

        sent = wire.read(payload)
        os.close(payload)
        main = types.ModuleType("__main__")
        if getattr(sent["function"], "__module__", None) == "__main__":
            vars(main).update(getattr(sent["function"], "__globals__", {}))
        vars(main).update(sent["classes"])
        main.__name__ = "__main__"
        sys.modules["__main__"] = main
        linecache.cache.update(sent["cells"])
        lines.tell_cells(sent["numbers"])
        random.setstate(sent["random"])
        if sent["numpy"] is not None:
            import numpy as np

            np.random.set_state(sent["numpy"])
        import torch

        torch.set_rng_state(sent["torch"])
        torch.set_default_dtype(sent["dtype"])
        return Call(sent["function"], sent["args"], sent["kwargs"], _known_classes())

    return load

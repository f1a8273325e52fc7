"""One attempt at a run: made, driven to its end, read out, taken apart.

``Attempt.go`` is the blocking driver. A handle (``block=False``) drives the same object from a
thread that lives as long as the run: the system ties a worker's life to the thread that forked it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from notebook_accel.config.placement import torchruns_names
from notebook_accel.config.words import ranks as ranks_words
from notebook_accel.errors import LaunchError, RunInterrupted
from notebook_accel.events import shelf
from notebook_accel.events.history import History
from notebook_accel.events.logs import Logs
from notebook_accel.events.pulse import Beat
from notebook_accel.events.records import Recorder
from notebook_accel.events.sinks import Sink
from notebook_accel.events.story import About
from notebook_accel.launch import start, store, streams, verdict, wire
from notebook_accel.launch.about import about, hider
from notebook_accel.launch.arrivals import Arrivals
from notebook_accel.launch.guard import Guard
from notebook_accel.launch.left_behind import Reminder
from notebook_accel.launch.memory import FlagPage, PulsePage, anonymous_file
from notebook_accel.launch.plan import LaunchPlan
from notebook_accel.launch.result import RunResult
from notebook_accel.launch.seat import Lane, Seat, open_lane
from notebook_accel.launch.supervise import RankState, Supervisor

# One start at a time in a process: a fork in one thread would inherit, and hold open, the pipe by
# which another thread's subprocess reports that it has started.
_starting = threading.Lock()
_RESTART = "TORCHELASTIC_RESTART_COUNT"


@dataclass(frozen=True)
class Order:
    """Everything decided about a run before it starts.

    ``agent_store`` says that the ranks meet at a store that is served already, by an agent;
    ``gathers`` that the ranks of other machines report here as well. ``name`` tells the run from
    others that go on in the background: "run 2"; "" where there are none.
    """

    job: start.Job
    plan: LaunchPlan
    choice: start.Choice
    settings: dict[str, Any]
    env: dict[str, str]
    master_addr: str
    port: int | None
    timeout_s: float | None
    on_interrupt: str
    agent_store: bool = False
    gathers: bool = False
    name: str = ""

    @property
    def num_ranks(self) -> int:
        """How many ranks report here."""
        places = self.plan.placements
        return places[0].size if self.gathers else len(places)


class Interrupts:
    """Ctrl-C and the interrupt button, as calls instead of an exception, while a run goes on.

    Only the main thread can be interrupted; elsewhere this does nothing. The former handler is
    back in place afterwards.
    """

    def __init__(self) -> None:
        self.count = 0
        self.on_interrupt: list[Any] = []

    def __enter__(self) -> Interrupts:
        self._former: Any = None
        if threading.current_thread() is threading.main_thread():
            former = signal.getsignal(signal.SIGINT)
            if former is not None:  # None: a handler that Python could not put back
                self._former = former
                signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._former is not None:
            signal.signal(signal.SIGINT, self._former)

    def _note(self, number: int, frame: Any) -> None:
        self.count += 1
        for call in self.on_interrupt:
            call()


class Attempt:
    """One attempt to carry out an order."""

    def __init__(self, order: Order, interrupts: Interrupts, is_recorded: bool = False) -> None:
        self.order = order
        self.history = History()
        self.logs = streams.RankLogs(order.num_ranks)
        self.recorder = Recorder(
            _about(order),
            self.history,
            self.logs.texts,
            shelf.root() if is_recorded else None,
            hider(order.job, order.env),
        )
        self._sinks: list[Sink] = [self.history, self.logs, self.recorder, Reminder()]
        self._interrupts = interrupts
        self._supervisor: Supervisor | None = None
        self._early: list[str] = []
        self._asked_first = ""
        self.gives_way = False
        self._classes = {
            name: value
            for name, value in list(vars(sys.modules["__main__"]).items())
            if isinstance(value, type)
        }

    def add_sinks(self, sinks: Sequence[Sink]) -> None:
        """Let ``sinks`` see every event, after the history has seen it; before ``go``."""
        self._sinks += sinks

    # ── asked from outside, from any thread ───────────────────────────────────────────────────

    def stop(self) -> None:
        """Ask the ranks to stop at a step they agree on."""
        self._ask("stop")

    def kill(self) -> None:
        """End the ranks now."""
        self._ask("kill")

    def give_way(self) -> None:
        """End the ranks now, for they start again together with those of other machines."""
        self.gives_way = True
        self.kill()

    def beats(self) -> list[Beat]:
        """Give each rank's newest pulse; nothing before the start."""
        supervisor = self._supervisor
        return [] if supervisor is None else [wait.beat for wait in supervisor.waits.ranks]

    def _ask(self, what: str) -> None:
        self._early.append(what)
        if self._supervisor is not None:
            self._supervisor.wake()

    # ── driving ───────────────────────────────────────────────────────────────────────────────

    def go(self) -> RunResult:
        """Start the workers, watch them to their end, and give the result.

        Errors: the user's own exception, WorkerDied, WorkerFailed, RunTimeout, RunInterrupted.
        """
        try:
            result = self._carry_out()
        except BaseException as error:
            self._end_record(error)
            raise
        self._end_record(None, result.stopped)
        return result

    def _end_record(self, error: BaseException | None, stopped: bool = False) -> None:
        for sink in self._sinks:
            if image := getattr(sink, "png", b""):  # of what drew the run
                self.recorder.keep_picture(image)
        self.recorder.end(error, stopped)

    def _carry_out(self) -> RunResult:
        began = time.monotonic()
        with contextlib.ExitStack() as stack:
            lanes = self._start(stack)
            supervisor = self._supervisor
            assert supervisor is not None
            try:
                self._drive(supervisor)
            finally:
                supervisor.close()
            return self._read_out(supervisor, lanes, time.monotonic() - began)

    def _start(self, stack: contextlib.ExitStack) -> list[Lane]:
        order = self.order
        flags_fd = anonymous_file("flags")
        stack.callback(os.close, flags_fd)
        flags = FlagPage(flags_fd, create=True)
        stack.callback(flags.close)  # an exception may keep this frame, and the page with it
        places = order.plan.placements
        pulses = PulsePage(flags_fd, len(places), create=True)
        stack.callback(pulses.close)
        store_fd, env = store.serve(order, stack)
        seats = []
        for placement in places:
            seat = Seat(
                placement,
                _threads(order),
                {**env, **torchruns_names(placement), **order.plan.env, **order.env},
                order.settings,
                "ipykernel" in sys.modules,
            )
            lane, seat = open_lane(seat, flags_fd, store_fd)
            stack.callback(lane.close)
            seats.append((lane, seat))
        with _starting:
            guard = Guard()
            try:
                crew = start.start(order.choice.method, order.job, seats, [guard.fd])
            except BaseException:
                guard.dismiss()
                for lane, _ in seats:
                    for fd in (lane.stdout, lane.stderr, lane.events):
                        os.close(fd)
                raise
        lanes = [lane for lane, _ in seats]
        self._supervisor = Supervisor(
            crew,
            lanes,
            flags,
            pulses,
            guard,
            [*self._sinks, Arrivals(self._sinks, len(lanes))],
            order.timeout_s,
            order.plan.on_one_machine,
        )
        return lanes

    def _drive(self, supervisor: Supervisor) -> None:
        interrupted = 0
        self._interrupts.on_interrupt.append(supervisor.wake)
        try:
            while not self._done(supervisor):
                if self._interrupts.count > interrupted:
                    interrupted += 1
                    self._early.append("stop" if interrupted == 1 else "kill")
                while self._early:
                    what = self._early.pop(0)
                    self._asked_first = self._asked_first or what
                    supervisor.kill() if what == "kill" else supervisor.stop()
                supervisor.step()
        finally:
            self._interrupts.on_interrupt.remove(supervisor.wake)

    def _done(self, supervisor: Supervisor) -> bool:
        return supervisor.done

    def _ranks(self, supervisor: Supervisor) -> list[RankState]:
        """Give all ranks that are read out here, in rank order."""
        return supervisor.ranks

    # ── reading out ───────────────────────────────────────────────────────────────────────────

    def _read_out(self, supervisor: Supervisor, lanes: list[Lane], took_s: float) -> RunResult:
        ranks = self._ranks(supervisor)
        reason = supervisor.ending.reason if supervisor.ending is not None else ""
        values = [self._value(state, needed=not reason) for state in ranks]
        stopped = bool(reason) or any(s.returned is not None and s.returned.stopped for s in ranks)
        result = RunResult(
            [
                None if state.returned is None or state.returned.stopped else value
                for state, value in zip(ranks, values, strict=True)
            ],
            self.history,
            Logs(self.logs.texts()),
            took_s,
            self.order.plan.device_words,
            self.order.choice.method,
            self.recorder.record,
            self.order.job,
            stopped,
            _salvaged(ranks, values),
        )
        if reason == "interrupt":
            if self.order.on_interrupt == "return":
                return result
            has_models = bool(result.salvaged)
            raise RunInterrupted(_how_it_stopped(ranks, self._asked_first, has_models), result)
        if reason:
            raise _with_rest(self._error(reason, supervisor), result)
        return result

    def _error(self, reason: str, supervisor: Supervisor) -> BaseException:
        ranks = self._ranks(supervisor)
        if reason == "stuck":
            return verdict.stuck(supervisor.ranks)
        if reason == "timeout":
            assert self.order.timeout_s is not None
            return verdict.timed_out(self.order.timeout_s, ranks, supervisor.stacks)
        return verdict.blame(ranks, self._exception_of(ranks))

    def _value(self, state: RankState, needed: bool) -> Any:
        if state.returned is None:
            return None
        try:
            return wire.read(state.lane.result, self._classes)
        except Exception as error:
            if not needed:  # the run has ended badly already, and that is what must be told
                return None
            raise LaunchError(
                f"what rank {state.rank} returned could not be read here: {error!r}",
                "it was pickled in the worker and must be unpickled in the notebook",
                "return tensors, modules, numbers, strings and containers of them",
            ) from error

    def _exception_of(self, ranks: list[RankState]) -> Any:
        def exception_of(rank: int) -> BaseException | None:
            failed = ranks[rank].failed
            if failed is None or not failed.num_bytes:
                return None
            try:
                exc = wire.read(ranks[rank].lane.result, self._classes)
            except Exception:  # the description that came beside it says everything
                return None
            return exc if isinstance(exc, BaseException) else None

        return exception_of


def _about(order: Order) -> About:
    restart = order.env.get(_RESTART, "0")
    asked = {
        **order.settings,
        "timeout_s": order.timeout_s,
        "restart": int(restart) or None,
    }
    told = about(order.job, order.plan, order.choice.method, asked, order.env)
    return replace(told, num_ranks=order.num_ranks)


def _with_rest(error: BaseException, result: RunResult) -> BaseException:
    """Let an error carry what there was by then, where it has no ``result`` of its own."""
    if getattr(error, "result", None) is None:
        with contextlib.suppress(AttributeError):  # a type that takes none
            error.result = result  # type: ignore[attr-defined]
    return error


def _salvaged(ranks: list[RankState], values: list[Any]) -> list[Any]:
    first = ranks[0].returned
    return list(values[0]) if first is not None and first.stopped else []


def _how_it_stopped(ranks: list[RankState], asked: str, has_models: bool) -> str:
    """Say where the run ended, by what the person ``asked`` first, and what is left of it."""
    steps = sorted({state.last_step for state in ranks})
    at = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    killed = [state.rank for state in ranks if state.we_killed and not state.reported]
    verb = "killed" if asked == "kill" else "stopped"
    how = f"; {ranks_words(killed)} had to be killed" if killed and verb == "stopped" else ""
    models = ", and in .salvaged the models of rank 0" if has_models else ""
    if 0 in killed:
        models = "; there are no models in .salvaged, for rank 0 was killed"
    return (
        f"the run was {verb} at {at}{how}; this exception's .result (sys.last_value.result in "
        f"the next cell) has the curve{models}"
    )


def _threads(order: Order) -> int:
    asked = order.env.get("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", ""))
    return int(asked) if asked.isdigit() and int(asked) > 0 else order.plan.num_threads


def with_restart(order: Order, attempt: int) -> Order:
    """The same order, telling the workers which attempt this is."""
    env = {**order.env, _RESTART: str(attempt)}
    return replace(order, env=env)

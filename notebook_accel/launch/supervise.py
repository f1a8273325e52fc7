"""The one loop of a run: pipes and process ends in, events to sinks out, and a way to every end.

``step`` waits for whatever comes first and handles it; whoever drives it (the cell's own thread,
a thread behind a handle, an event loop) calls it until ``done``. Every way out goes down the same
stairs, each with a deadline: *ask* (the flag page), *terminate* (SIGTERM, which raises StopRun in
the worker's main thread), *kill* (SIGKILL to the process group).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from notebook_accel.events.emitter import FrameReader
from notebook_accel.events.model import (
    Exited,
    Failed,
    Landmark,
    Metrics,
    Output,
    Progress,
    Returned,
    Started,
    Stuck,
)
from notebook_accel.events.sinks import Sink
from notebook_accel.launch.crew import Crew, signal_group, signal_process
from notebook_accel.launch.guard import Guard
from notebook_accel.launch.memory import FlagPage, PulsePage
from notebook_accel.launch.seat import Lane
from notebook_accel.launch.streams import LineCutter
from notebook_accel.launch.waits import Wait, Waits

FOLD_S = 0.2  # after a failure: time for the same failure of other ranks to arrive
ROOT_CAUSE_S = 1.0  # after a "connection closed": time for the reason of it to arrive
TERMINATE_S = 3.0  # from SIGTERM to SIGKILL
EXIT_S = 10.0  # from a rank's result to the end of its exit functions
ASK_S = 3.0  # from the stop flag to SIGTERM, for ranks in a training loop
ASK_IDLE_S = 0.3  # the same for ranks that take no steps and so never look at the flag
STUCK_S = 1.0  # from SIGTERM to SIGKILL for ranks that wait for each other: they hear nothing
STACKS_S = 0.25  # time for a stuck rank to write down where it is
READ_BYTES = 1 << 18


@dataclass
class RankState:
    """What is known of one rank."""

    lane: Lane
    wait: Wait = field(default_factory=Wait)
    reader: FrameReader = field(default_factory=FrameReader)
    cutters: dict[int, LineCutter] = field(default_factory=dict)
    started: bool = False
    returned: Returned | None = None
    failed: Failed | None = None
    code: int | None = None
    we_killed: bool = False
    last_step: int = 0
    last_step_at: float = 0.0
    step_s: float = 0.0
    order: int = 0  # when it failed or died without a word, counted over ranks
    reported_at: float = 0.0

    @property
    def rank(self) -> int:
        """The rank's number in the whole run."""
        return self.lane.rank

    @property
    def reported(self) -> bool:
        """True once the rank has said how its function ended."""
        return self.returned is not None or self.failed is not None


@dataclass
class Ending:
    """Why the run is being ended, and when the next stair comes."""

    reason: str  # "failure", "interrupt", "timeout", "stuck"
    terminate_at: float
    kill_at: float = float("inf")


class Supervisor:
    """Watches one run until every rank has ended."""

    def __init__(
        self,
        crew: Crew,
        lanes: Sequence[Lane],
        flags: FlagPage,
        pulses: PulsePage,
        guard: Guard,
        sinks: Sequence[Sink],
        timeout_s: float | None = None,
        alone: bool = True,
    ) -> None:
        self._crew = crew
        self._flags = flags
        self._guard = guard
        self._sinks = list(sinks)
        self.waits = Waits(pulses.read, [lane.rank for lane in lanes], alone)
        self.ranks = [
            RankState(lane, wait) for lane, wait in zip(lanes, self.waits.ranks, strict=True)
        ]
        self.ending: Ending | None = None
        self.stacks: dict[int, str] = {}
        self._guarded: set[int] = set()
        self._num_troubles = 0
        self._deadline = time.monotonic() + timeout_s if timeout_s is not None else float("inf")
        self._selector = selectors.DefaultSelector()
        self._waking = threading.RLock()  # a signal handler may wake who is closing
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        for rank, state in enumerate(self.ranks):
            lane = state.lane
            state.cutters = {
                lane.stdout: LineCutter(rank, "stdout"),
                lane.stderr: LineCutter(rank, "stderr"),
            }
            for fd in (lane.stdout, lane.stderr, lane.events):
                self._selector.register(fd, selectors.EVENT_READ, state)
        for fd in crew.fds():
            self._selector.register(fd, selectors.EVENT_READ, None)
        self._watched_crew = set(crew.fds())

    # ── what others may call ──────────────────────────────────────────────────────────────────

    @property
    def done(self) -> bool:
        """True when every rank has ended."""
        return all(state.code is not None for state in self.ranks)

    def wake(self) -> None:
        """Make a waiting ``step`` look round; safe in a signal handler and from any thread."""
        with self._waking:  # once closed, the number may be somebody else's
            if self._wake_write >= 0:
                with contextlib.suppress(BlockingIOError):  # it is awake already
                    os.write(self._wake_write, b"!")

    def stop(self) -> None:
        """Ask all ranks to stop at a step they agree on; those that take no steps are told."""
        if self.ending is None:
            self._flags.ask_stop()
            now = time.monotonic()
            self.ending = Ending("interrupt", now + self._patience(now))

    def kill(self) -> None:
        """End every rank now."""
        now = time.monotonic()
        if self.ending is None:
            self.ending = Ending("interrupt", now)
        self.ending.terminate_at = self.ending.kill_at = now

    def step(self, timeout_s: float = 0.05) -> None:
        """Wait for something to happen, at most ``timeout_s``, and do what it asks for."""
        ready = self._selector.select(min(timeout_s, self._next_deadline()))
        fds = {key.fd for key, _ in ready}
        if self._wake_read in fds:
            os.read(self._wake_read, 4096)
        texts = [key for key, _ in ready if key.data and key.fd != key.data.lane.events]
        reports = [key for key, _ in ready if key.data and key.fd == key.data.lane.events]
        for key in (*texts, *reports):  # a line printed before an event is shown before it
            self._read(key.data, key.fd)
        for rank, code in self._crew.news():
            self._ended(self.ranks[rank], code)
        self._guard_new_pids()
        self._judge(time.monotonic())
        for sink in list(self._sinks):
            self._call(sink, sink.tick)

    def close(self) -> None:
        """Let go of everything; the ranks have ended or are ended here."""
        for rank, state in enumerate(self.ranks):
            if state.code is None:
                self._kill_rank(rank)
            self._drain(state)  # one that ended before it was made has pipes, too
        for fd in (*self._watched_crew, self._wake_read):
            self._forget(fd)
        with self._waking:
            wake_write, self._wake_write = self._wake_write, -1
        os.close(self._wake_read)
        os.close(wake_write)
        self._selector.close()
        self._guard.dismiss()
        self._crew.release()
        for sink in list(self._sinks):
            self._call(sink, sink.close)

    # ── reading ───────────────────────────────────────────────────────────────────────────────

    def _read(self, state: RankState, fd: int) -> bool:
        """Read once from a rank's pipe; False when there is nothing more now or ever."""
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return False
        cutter = state.cutters.get(fd)
        if data:
            events = state.reader.feed(data) if cutter is None else cutter.feed(data)
        else:
            self._forget(fd)
            os.close(fd)
            events = cutter.finish() if cutter is not None else []
            state.cutters.pop(fd, None)
        for event in events:
            self._take(state, event)
        return bool(data)

    def _drain(self, state: RankState) -> None:
        """Read what an ended rank left in its pipes, then close them.

        A grandchild may hold them open for ever, so their end is not waited for.
        """
        lane = state.lane
        for fd in (lane.stdout, lane.stderr, lane.events):
            while fd in self._selector.get_map() and self._read(state, fd):
                pass
            if fd in self._selector.get_map():
                self._forget(fd)
                os.close(fd)
                cutter = state.cutters.pop(fd, None)
                for event in cutter.finish() if cutter is not None else []:
                    self._take(state, event)

    def _forget(self, fd: int) -> None:
        try:
            self._selector.unregister(fd)
        except (KeyError, ValueError):
            return

    def _take(self, state: RankState, event: Any) -> None:
        now = time.monotonic()
        if isinstance(event, Started):
            state.started = True
        elif isinstance(event, (Progress, Metrics)):
            self._note_step(state, event, now)
        elif isinstance(event, Returned):
            state.returned = event
            state.reported_at = now
            state.wait.returned = True
        elif isinstance(event, Landmark):
            self.waits.told(event)
        elif isinstance(event, Failed):
            state.failed = event
            state.reported_at = now
            self._count_trouble(state)
        self.emit(event)

    def _note_step(self, state: RankState, event: Progress | Metrics, now: float) -> None:
        step = event.step if isinstance(event, Progress) else event.points[-1][1]
        if step > state.last_step:
            if state.last_step_at:
                state.step_s = (now - state.last_step_at) / (step - state.last_step)
            state.last_step, state.last_step_at = step, now

    def emit(self, event: Any) -> None:
        """Show an event to every sink."""
        for sink in list(self._sinks):
            self._call(sink, sink.handle, event)

    def _call(self, sink: Sink, method: Any, *args: Any) -> None:
        """Call a sink; one that fails is reported once and left out, the run goes on."""
        try:
            method(*args)
        except Exception as error:
            if sink in self._sinks:
                self._sinks.remove(sink)
            print(
                f"note: {type(sink).__name__} failed and is off for this run: {error!r}",
                file=sys.stderr,
            )

    # ── ends ──────────────────────────────────────────────────────────────────────────────────

    def _ended(self, state: RankState, code: int) -> None:
        rank = self.ranks.index(state)
        self._drain(state)
        signal_group(self._crew.pid(rank), signal.SIGKILL)  # what it started goes with it
        state.code = code
        if not state.reported and not state.we_killed:
            self._count_trouble(state)
        elif (
            state.returned is not None
            and not state.returned.stopped
            and code
            and not state.we_killed
        ):
            note = f"note: rank {state.rank} returned, then its process ended with code {code}\n"
            self.emit(Output(rank, "stderr", note, announced=True))
        self.emit(Exited(rank, code, state.we_killed))
        self._rewatch_crew()

    def _rewatch_crew(self) -> None:
        now = set(self._crew.fds())
        for fd in self._watched_crew - now:
            self._forget(fd)
        self._watched_crew = now

    def _count_trouble(self, state: RankState) -> None:
        self._num_troubles += 1
        state.order = self._num_troubles

    def _pids(self) -> list[int | None]:
        return [self._crew.pid(rank) for rank in range(len(self.ranks))]

    def _guard_new_pids(self) -> None:
        for rank in range(len(self.ranks)):
            pid = self._crew.pid(rank)
            if pid is not None and rank not in self._guarded:
                self._guarded.add(rank)
                self._guard.watch(pid)

    def _judge(self, now: float) -> None:
        """Begin or go on ending the run, if it is time."""
        self.waits.look(now)
        if self.ending is None and self._num_troubles:
            comm_only = all(
                state.failed is not None and state.failed.is_comm
                for state in self.ranks
                if state.order
            )
            self.ending = Ending("failure", now + (ROOT_CAUSE_S if comm_only else FOLD_S))
        elif self.ending is None and now >= self._deadline:
            self._write_stacks()
            self.ending = Ending("timeout", now)
        elif self.ending is None and self.waits.stuck(now, self._pids()):
            self.ending = Ending("stuck", now)
            self.emit(Stuck())
        elif self.ending is None and (note := self.waits.slow(now)):
            self.emit(Output(0, "stderr", note, announced=True))
        if self.ending is not None:
            self._descend(self.ending, now)
        for rank, state in enumerate(self.ranks):
            if state.reported and state.code is None and now >= state.reported_at + EXIT_S:
                note = (
                    f"note: rank {state.rank} was ended: its exit functions took {EXIT_S:.0f} s\n"
                )
                if not state.we_killed:
                    self.emit(Output(rank, "stderr", note, announced=True))
                self._kill_rank(rank)

    def _descend(self, ending: Ending, now: float) -> None:
        if ending.kill_at == float("inf") and now >= ending.terminate_at:
            ending.kill_at = now + (STUCK_S if ending.reason == "stuck" else TERMINATE_S)
            for rank, state in enumerate(self.ranks):
                if not state.reported and state.code is None:
                    signal_process(self._crew.pid(rank), signal.SIGTERM)
        if now >= ending.kill_at:
            for rank, state in enumerate(self.ranks):
                if state.code is None:
                    self._kill_rank(rank)

    def _kill_rank(self, rank: int) -> None:
        state = self.ranks[rank]
        state.we_killed = True
        pid = self._crew.pid(rank)
        signal_group(pid, signal.SIGKILL)
        signal_process(pid, signal.SIGKILL)
        if pid is None:  # the forkserver has not made it yet, and will not: its run is let go
            state.code = -int(signal.SIGKILL)

    def _patience(self, now: float) -> float:
        """How long to wait for the ranks to agree on a step, before they are told one by one."""
        stepping = [s for s in self.ranks if s.last_step_at and not s.reported]
        if any(now - s.last_step_at < max(2.0, 3 * s.step_s) for s in stepping):
            return max(ASK_S, 6 * max(s.step_s for s in stepping) + 1.0)
        return ASK_IDLE_S

    def _write_stacks(self) -> None:
        """Let every rank that still runs write down where it is; read it after a moment."""
        for rank, state in enumerate(self.ranks):
            if state.started and not state.reported:
                signal_process(self._crew.pid(rank), signal.SIGUSR2)
        time.sleep(STACKS_S)
        for rank, state in enumerate(self.ranks):
            fd = state.lane.stacks
            text = os.pread(fd, os.fstat(fd).st_size, 0).decode("utf-8", "replace")
            if text:
                self.stacks[rank] = text

    def _next_deadline(self) -> float:
        now = time.monotonic()
        times = [self._deadline] if self.ending is None else []
        if self.ending is not None:
            times += [self.ending.terminate_at, self.ending.kill_at]
        left = [moment - now for moment in times if moment > now]
        return min(left, default=60.0)

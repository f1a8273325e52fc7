"""Several processes of one script on this machine, watched from their start to their end.

Each is the leader of a session of its own, so that it can be ended with everything it started; a
guard ends them when this process vanishes. Signals from outside are passed on. When one fails, the
others get a moment to say the same or a reason of their own, then SIGTERM, then SIGKILL.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from notebook_accel.launch.crew import Children, signal_group, signal_process
from notebook_accel.launch.guard import Guard
from notebook_accel.launch.scripts.ending import Fate, lost_its_peers, plain, tell
from notebook_accel.launch.scripts.program import does_not_start
from notebook_accel.launch.scripts.voices import Voice, open_ends

FOLD_S = 0.3  # after a failure: time for the same failure of other ranks to arrive
ROOT_CAUSE_S = 2.0  # after a lost connection: time for the reason of it to arrive
TERMINATE_S = 10.0  # from SIGTERM to SIGKILL after a failure
OBEY_S = 30.0  # from a signal that asks to end to SIGKILL
DRAIN_S = 1.0  # for what is still in the pipes when every rank has ended
STDERR = 2
_LOOK_S = 0.05  # how often to look who has ended, where the system does not tell
_NEVER = float("inf")
_ASK_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASSED_ON = (*_ASK_TO_END, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP)
_FOR_NO_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores them, and that is inherited


def run(words: Sequence[str], envs: Sequence[Mapping[str, str]], say: Callable[[str], None]) -> int:
    """Start ``words`` once for each environment, watch them, and give the exit code.

    ``say`` writes a line about the run. Ended by a signal from outside, this process ends by it.

    Errors: LaunchError when the system refuses to run them.
    """
    with contextlib.ExitStack() as stack:
        with _undisturbed() as mask:  # a signal meanwhile waits for those who pass it on
            try:
                watch = _Watch(words, envs, mask)
            except OSError as error:
                raise does_not_start(words[0], error) from error
            signals = stack.enter_context(_Signals(watch.on_signal))
        watch.go(signals.woken)
    told, code = tell(watch.fates, len(envs), watch.asked_to_end)
    if told.words:
        sys.stderr.buffer.write((b"" if watch.ends_a_line else b"\n") + told.words)
        sys.stderr.buffer.flush()
    if told.summary:
        say(told.summary)
    if watch.trouble is not None and not code:
        say(f"what the ranks wrote is lost: {watch.trouble.strerror}")
        code = 1
    if watch.asked_to_end is not None and code:
        signal.signal(watch.asked_to_end, signal.SIG_DFL)
        os.kill(os.getpid(), watch.asked_to_end)
    return code


class _Watch:
    def __init__(
        self, words: Sequence[str], envs: Sequence[Mapping[str, str]], mask: set[int]
    ) -> None:
        self.fates: list[Fate] = []  # in the order in which they ended
        self.asked_to_end: signal.Signals | None = None
        self._is_ending = False  # what ends from now on was told to
        self._terminate_at = _NEVER
        self._kill_at = _NEVER
        self._selector = selectors.DefaultSelector()
        self._all_voices: list[Voice] = []
        self._voices: list[Voice] = []  # those that have not ended
        self._pids: list[int] = []
        self._guard = Guard()
        try:
            for rank, env in enumerate(envs):
                self._pids.append(self._start(rank, words, env, mask))
        except BaseException:
            self._signal(signal.SIGKILL)
            self._guard.dismiss()
            Children(self._pids).release()
            raise
        self._crew = Children(self._pids)
        self._alive = set(range(len(envs)))

    @property
    def ends_a_line(self) -> bool:
        """Whether everything written to stderr so far ended its line."""
        return all(one.ends_a_line for one in self._all_voices if one.target == STDERR)

    @property
    def trouble(self) -> OSError | None:
        """What kept output from its place; a reader that went away is none."""
        found = [one.trouble for one in self._all_voices]
        return next((one for one in found if one and one.errno != errno.EPIPE), None)

    def _start(
        self, rank: int, words: Sequence[str], env: Mapping[str, str], mask: set[int]
    ) -> int:
        theirs = []
        for target in (1, STDERR):
            ours, end = open_ends(target, own_terminal=rank == 0 and os.isatty(target))
            theirs.append(end)
            voice = Voice(rank, ours, target, holds_back=target == STDERR)
            self._all_voices.append(voice)
            self._voices.append(voice)
            self._selector.register(ours, selectors.EVENT_READ, voice)
        launch = os.getpid()

        def announce() -> None:
            """Tell the guard before becoming the program: this launch may be killed at any time."""
            self._guard.watch(os.getpid())
            if os.getppid() != launch:  # the guard may have looked before
                os._exit(1)
            for number in _FOR_NO_PYTHON:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        try:
            process = subprocess.Popen(
                words,
                env=env,
                # one of them may ask; the others must not take its answers
                stdin=None if rank == 0 else subprocess.DEVNULL,
                stdout=theirs[0],
                stderr=theirs[1],
                restore_signals=False,
                start_new_session=True,
                preexec_fn=announce,
            )
        finally:
            for end in theirs:
                os.close(end)
        process.returncode = 0  # it is reaped with the crew, not when this object goes
        return process.pid

    # ── until they have ended ─────────────────────────────────────────────────────────────────

    def go(self, woken: int) -> None:
        """Watch until every rank has ended, then take leave of what they started.

        ``woken`` is a descriptor that becomes readable when a signal came.
        """
        ends = self._crew.fds()
        for fd in (woken, *ends):
            self._selector.register(fd, selectors.EVENT_READ)
        while self._alive:
            for key, _ in self._selector.select(self._patience(bool(ends))):
                if isinstance(key.data, Voice):
                    self._listen(key.data)
                elif key.fd == woken:
                    os.read(woken, 1 << 10)
            self._notice_ends()
            now = time.monotonic()
            for voice in self._voices:
                voice.write_due(now)
            self._climb(now)
        self._signal(signal.SIGKILL)  # what they started and left running
        until = time.monotonic() + DRAIN_S
        while self._voices and (left := until - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                if isinstance(key.data, Voice):
                    self._listen(key.data)
        for voice in list(self._voices):
            self._close(voice)
        self._guard.dismiss()
        self._crew.release()
        self._selector.close()

    def _patience(self, is_told: bool) -> float | None:
        due = [
            _NEVER if self._is_ending else self._terminate_at,
            self._kill_at,
            *(voice.due for voice in self._voices),
        ]
        left = min(due) - time.monotonic()
        if not is_told:
            left = min(left, _LOOK_S)
        return None if left == _NEVER else max(0.0, left)

    def _listen(self, voice: Voice) -> None:
        if not voice.read(time.monotonic()):
            self._close(voice)

    def _close(self, voice: Voice) -> None:
        self._selector.unregister(voice.source)
        os.close(voice.source)
        self._voices.remove(voice)

    def _notice_ends(self) -> None:
        watched = set(self._crew.fds())
        news = self._crew.news()
        for fd in watched - set(self._crew.fds()):
            self._selector.unregister(fd)
        for rank, code in news:
            self._alive.remove(rank)
            self.fates.append(Fate(rank, code, self._last_words(rank), self._is_ending))
            if code and not self._is_ending:
                patience_s = ROOT_CAUSE_S if lost_its_peers(self.fates[-1].words) else FOLD_S
                self._terminate_at = min(self._terminate_at, time.monotonic() + patience_s)

    def _last_words(self, rank: int) -> bytes:
        """Read what a rank that has ended left in its pipes; give what it said last on stderr."""
        words = b""
        for voice in [one for one in self._all_voices if one.rank == rank]:
            while voice in self._voices and select.select([voice.source], [], [], 0)[0]:
                self._listen(voice)
            words += voice.finish()
        return plain(words)

    # ── the stairs ────────────────────────────────────────────────────────────────────────────

    def on_signal(self, number: signal.Signals) -> None:
        """Pass on a signal from outside; a second one that asks to end does not wait."""
        if number == signal.SIGTSTP:
            self._signal(signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            self._signal(signal.SIGCONT)  # somebody has let this process go on
            return
        if number in _ASK_TO_END:
            self._kill_at = 0.0 if self.asked_to_end else time.monotonic() + OBEY_S
            self.asked_to_end, self._is_ending = number, True
        if number == signal.SIGINT:  # as a terminal does
            self._signal(number)
            return
        for rank in list(self._alive):
            signal_process(self._pids[rank], number)

    def _climb(self, now: float) -> None:
        if now >= self._kill_at:
            self._signal(signal.SIGKILL)
            self._kill_at = _NEVER
        elif now >= self._terminate_at and not self._is_ending:
            self._is_ending = True
            self._kill_at = now + TERMINATE_S
            for rank in self._alive:
                signal_process(self._pids[rank], signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to every rank and everything that it started."""
        for pid in self._pids:
            signal_group(pid, number)


@contextlib.contextmanager
def _undisturbed() -> Iterator[set[int]]:
    """Let signals wait, and give the mask that was: a rank that starts is not lost sight of."""
    former = signal.pthread_sigmask(signal.SIG_BLOCK, _ASK_TO_END)
    try:
        yield {int(number) for number in former}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


class _Signals:
    """Signals from outside as calls, and as something to read, while the processes run."""

    def __init__(self, on_signal: Callable[[signal.Signals], None]) -> None:
        self._on_signal = on_signal
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> _Signals:
        self.woken, self._wake = os.pipe()
        for fd in (self.woken, self._wake):
            os.set_blocking(fd, False)
        self._former_fd = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in _PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means it
                self._former[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)
        signal.set_wakeup_fd(self._former_fd)
        os.close(self.woken)
        os.close(self._wake)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._on_signal(signal.Signals(number))

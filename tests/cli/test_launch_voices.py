"""What ranks write on its way to the terminal: whole lines, and a traceback held back."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from notebook_accel.launch.scripts.voices import FINAL_HOLD_S, HOLD_S, PARTIAL_S, Voice

TRACEBACK = b"Traceback (most recent call last):\n  File\nValueError: no\n"


class Pipes:
    """A voice between two pipes: what a rank writes, and what comes out."""

    def __init__(self) -> None:
        source, self.rank = os.pipe()
        self.out, target = os.pipe()
        os.set_blocking(source, False)
        os.set_blocking(self.out, False)
        self.voice = Voice(0, source, target, holds_back=True)
        self.fds = [source, self.rank, self.out, target]

    def say(self, data: bytes, now: float = 0.0) -> bytes:
        os.write(self.rank, data)
        assert self.voice.read(now)
        return self.heard()

    def heard(self) -> bytes:
        try:
            return os.read(self.out, 1 << 16)
        except BlockingIOError:
            return b""


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    made = Pipes()
    yield made
    for fd in made.fds:
        os.close(fd)


def test_whole_lines_pass_at_once_and_a_started_one_waits(pipes: Pipes) -> None:
    assert pipes.say(b"one\ntwo\nthr") == b"one\ntwo\n"
    pipes.voice.write_due(PARTIAL_S / 2)
    assert pipes.heard() == b""
    assert pipes.voice.due == PARTIAL_S
    pipes.voice.write_due(PARTIAL_S)
    assert pipes.heard() == b"thr"
    assert not pipes.voice.ends_a_line
    assert pipes.say(b"ee\n", now=1.0) == b"ee\n"


def test_a_progress_bar_moves(pipes: Pipes) -> None:
    assert pipes.say(b"\r 10%") == b"\r"
    assert pipes.say(b"\r 20%") == b" 10%\r"


def test_a_traceback_is_held_back_until_its_process_has_ended(pipes: Pipes) -> None:
    assert pipes.say(b"before\n" + TRACEBACK) == b"before\n"
    assert pipes.say(b"more") == b""
    assert pipes.voice.finish() == TRACEBACK + b"more"
    assert pipes.heard() == b""


def test_a_traceback_of_a_process_that_goes_on_is_let_go(pipes: Pipes) -> None:
    pipes.say(TRACEBACK)
    pipes.voice.write_due(HOLD_S)
    assert pipes.heard() == TRACEBACK
    assert pipes.say(b"after\n", now=2.0) == b"after\n"
    assert pipes.voice.finish() == b""


def test_what_torch_writes_at_an_end_is_held_longer(pipes: Pipes) -> None:
    pipes.say(b"[rank0]: " + TRACEBACK)
    pipes.voice.write_due(HOLD_S)
    assert pipes.heard() == b""
    pipes.voice.write_due(FINAL_HOLD_S)
    assert pipes.heard().startswith(b"[rank0]: Traceback")


def test_a_last_line_without_an_end_gets_one(pipes: Pipes) -> None:
    pipes.say(b"half")
    assert pipes.voice.finish() == b""
    assert pipes.heard() == b"half\n"

"""The watch over collectives: what a rank writes down, what the kernel concludes from it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import notebook_accel
from notebook_accel.events.model import Frame, Landmark
from notebook_accel.events.pulse import BACKWARD, KINDS, Beat, Pulse
from notebook_accel.launch import waits
from notebook_accel.launch.memory import PulsePage, anonymous_file
from notebook_accel.launch.waits import Waits
from notebook_accel.ranks import watch
from tests.support.ranks import start_ranks

GATHER, BARRIER = KINDS.index("all_gather"), KINDS.index("barrier")


@pytest.fixture
def page() -> Any:
    fd = anonymous_file("pulse")
    page = PulsePage(fd, 2, create=True)
    yield page
    page.close()
    os.close(fd)


@pytest.fixture
def pulse() -> Any:
    slot = memoryview(bytearray(64))
    told: list[Landmark] = []
    return Pulse(1, slot, told.append), slot.cast("q"), told


def test_a_slot_says_what_was_entered_and_whether_it_was_left(page: PulsePage) -> None:
    slot = page.slot(1)
    pulse = Pulse(1, slot, lambda landmark: None)
    pulse.enter(GATHER, 40)
    pulse.leave()
    pulse.enter(BACKWARD)
    assert page.read(1) == Beat(2, True, "backward", 2, 0, 1)
    pulse.leave()
    assert page.read(1) == Beat(2, False, "backward", 2, 0, 1)
    assert page.read(0) == Beat()
    slot.release()
    del pulse._words, pulse._slot  # what keeps a page mapped


def test_a_line_of_the_persons_code_is_told_once_and_by_its_own_name(pulse: Any) -> None:
    own, words, told = pulse
    source = "def gather(pulse):\n    pulse.enter(2)\n    pulse.leave()\n"
    inside: dict[str, Any] = {}
    ours = Path(notebook_accel.__file__).parent / "runtime" / "accelerator.py"
    exec(compile(source, str(ours), "exec"), inside)
    person = "def train(gather, pulse):\n    for i in range(3):\n        gather(pulse)\n"
    cell: dict[str, Any] = {}
    exec(compile(person, "cell", "exec"), cell)
    cell["train"](inside["gather"], own)
    assert told == [Landmark(1, 1, "gather", Frame("cell", 3, "train", ""))]
    assert list(words[:4]) == [3, 3, 2, 1]


def test_a_collective_that_fails_is_not_left(monkeypatch: pytest.MonkeyPatch, pulse: Any) -> None:
    own, words, _ = pulse
    monkeypatch.setattr(watch, "pulse", lambda: own)
    with pytest.raises(ValueError, match="process group"):
        watch.all_reduce(torch.ones(4))  # there is no process group here
    assert list(words[:5]) == [1, 0, KINDS.index("all_reduce"), 1, 16]


# ── what is proven ────────────────────────────────────────────────────────────────────────────


def looked(monkeypatch: pytest.MonkeyPatch, beats: list[Beat], alone: bool = True) -> Any:
    """Two ranks whose pulses stand still, and that sleep."""
    ticks = dict.fromkeys(range(len(beats)), 7)
    monkeypatch.setattr(waits, "cpu_ticks_asleep", ticks.get)
    watcher = Waits(beats.__getitem__, range(len(beats)), alone)
    watcher.look(100.0)

    clock = [100.0]

    def stuck(until: float) -> bool:
        while clock[0] < until:
            clock[0] += 0.1
            watcher.look(clock[0])
            if watcher.stuck(clock[0], range(len(beats))):
                return True
        return False

    return watcher, stuck, ticks


def inside(kind: str, num_bytes: int = 0) -> Beat:
    return Beat(5, True, kind, 0, num_bytes)


def test_ranks_asleep_in_different_collectives_are_stuck_after_a_few_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, stuck, _ = looked(monkeypatch, [inside("barrier"), inside("all_gather", 8)])
    assert not stuck(103.0)
    assert stuck(104.0)


def test_ranks_in_the_same_collective_are_never_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    _, stuck, _ = looked(monkeypatch, [inside("barrier"), inside("barrier")])
    assert not stuck(4000.0)


def test_tensors_of_different_sizes_never_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    _, stuck, _ = looked(monkeypatch, [inside("all_gather", 8), inside("all_gather", 12)])
    assert stuck(105.0)


def test_a_peer_that_computes_proves_nothing_however_long_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = Beat(5, False, "all_gather", 0, 0)
    watcher, stuck, _ = looked(monkeypatch, [inside("barrier"), busy])
    assert not stuck(4000.0)
    note = watcher.slow(4000.0)
    assert note == "note: rank 0 has waited 30 s in barrier for rank 1, last in all_gather\n"
    assert watcher.slow(5000.0) == "", "it is said once"


def test_a_rank_that_uses_the_processor_is_not_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    _, stuck, ticks = looked(monkeypatch, [inside("barrier"), inside("all_gather_object")])
    assert not stuck(103.0)
    ticks[1] += 1  # it reads what it was sent
    assert not stuck(105.5)
    ticks[1] = -1  # it runs at this moment
    assert not stuck(200.0)


def test_a_machine_that_stood_still_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    watcher, stuck, _ = looked(monkeypatch, [inside("barrier"), inside("all_gather_object")])
    assert not stuck(101.0)
    watcher.look(4000.0)
    assert not watcher.stuck(4000.0, [0, 1])


def test_a_peer_that_returned_leaves_the_others_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    watcher, stuck, _ = looked(monkeypatch, [inside("barrier"), Beat(4, False, "barrier")])
    watcher.ranks[1].returned = True
    assert stuck(105.0)


def test_a_group_that_is_whole_goes_on_whatever_the_others_wait_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = [Beat(5, True, "all_reduce", 0, 4, 0, 77, 2)] * 2
    _, stuck, _ = looked(monkeypatch, [*pair, inside("barrier")])
    assert not stuck(4000.0)
    other = Beat(5, True, "all_reduce", 0, 4, 0, 78, 2)
    _, stuck, _ = looked(monkeypatch, [pair[0], other, inside("barrier")])
    assert stuck(105.0)


def test_two_ranks_that_send_and_receive_may_mean_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, stuck, _ = looked(monkeypatch, [inside("send"), inside("recv"), inside("barrier")])
    assert not stuck(4000.0)
    _, stuck, _ = looked(monkeypatch, [inside("barrier"), inside("recv"), inside("barrier")])
    assert stuck(105.0)


def test_large_tensors_are_given_the_time_to_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    _, stuck, _ = looked(monkeypatch, [inside("barrier"), inside("all_reduce", 2_000_000_000)])
    assert not stuck(120.0)
    assert stuck(125.0)


def test_a_broadcast_may_wait_for_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    beats = [inside("barrier"), inside("broadcast", 8)]
    _, stuck, _ = looked(monkeypatch, beats, alone=False)
    assert not stuck(200.0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whether a thread sleeps")
def test_a_process_that_sleeps_and_one_that_runs_are_told_apart() -> None:
    programs = ["import time; print(flush=True); time.sleep(60)", "print(flush=True)\nwhile 1: 1"]
    processes = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        for program in programs
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        sleeper, runner = processes
        deadline = time.monotonic() + 20
        while waits.cpu_ticks_asleep(sleeper.pid) < 0:
            assert time.monotonic() < deadline
        assert waits.cpu_ticks_asleep(runner.pid) == -1
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert waits.cpu_ticks_asleep(sleeper.pid) == -1, "it has ended"


# ── debug mode ────────────────────────────────────────────────────────────────────────────────


def test_in_debug_mode_tensors_that_do_not_fit_are_refused_on_every_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ACCELERATE_DEBUG_MODE", "yes")

    def body() -> dict[str, str]:
        import torch

        from notebook_accel import Accelerator
        from notebook_accel.errors import DistributedOperationException

        accelerator = Accelerator()
        rank = accelerator.process_index
        said = {}
        for name, tensor in {
            "gather": torch.ones(2 + rank),
            "reduce": torch.ones(2, dtype=torch.int64 if rank else torch.float32),
            "pad_across_processes": torch.ones(2 + rank, 3 + rank),
        }.items():
            try:
                getattr(accelerator, name)(tensor)
            except DistributedOperationException as error:
                said[name] = str(error)
        assert accelerator.gather(torch.ones(1)).tolist() == [1.0, 1.0]
        assert accelerator.pad_across_processes(torch.ones(2 + rank)).shape == (3,)
        return said

    results = start_ranks(body, 2)
    for code, out, err, said in results:
        assert code == 0, (out, err)
        assert said["gather"].startswith(
            "gather got tensors that do not fit together: rank 0 [2] float32, rank 1 [3] float32"
        )
        assert "  do:  use pad_across_processes before" in said["gather"]
        assert "rank 0 [2] float32, rank 1 [2] int64" in said["reduce"]
        assert "rank 0 [2, 3] float32, rank 1 [3, 4] float32" in said["pad_across_processes"]


def test_a_meeting_is_left_when_it_is_over_and_one_that_failed_stays_where_it_ended(
    pulse: Any,
) -> None:
    own, words, _ = pulse
    with watch.meeting(own, BACKWARD):
        assert (own.is_in(BACKWARD), own.quiet) == (True, True)
    assert (Beat.read(tuple(words)).inside, own.quiet) == (False, False)
    with watch.meeting(own, KINDS.index("its return")):
        assert Beat.read(tuple(words)).kind == "its return"
    with pytest.raises(ValueError, match="on the way"), watch.meeting(own, BACKWARD):
        raise ValueError("on the way")
    assert (own.is_in(BACKWARD), own.quiet) == (True, False)
    with watch.meeting(None, BACKWARD):  # nobody looks
        pass

"""What the panel knows: alarms, ranks, stragglers, gauges, tails, tasks, controls."""

import math
import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from notebook_accel.events.controls import Controls
from notebook_accel.events.history import History
from notebook_accel.events.model import (
    Exited,
    Failed,
    Metrics,
    Output,
    Progress,
    Returned,
    Started,
    Task,
)
from notebook_accel.events.pulse import Beat
from notebook_accel.ui.alarms import Alarms
from notebook_accel.ui.gauges import Gauges
from notebook_accel.ui.panel import TASK_AFTER_S, Panel
from notebook_accel.ui.ranks import Ranks
from notebook_accel.ui.stragglers import LOOK_EVERY_S, Stragglers
from notebook_accel.ui.tails import MAX_LINES, Tails


def alarms_of(*points, rank=0):
    alarms = Alarms()
    alarms.handle(Metrics(rank, list(points)))
    return alarms.texts


def losses(values, name="loss"):
    return [(name, step, value) for step, value in enumerate(values, 1)]


def test_the_first_value_that_is_no_number_is_told_with_its_rank_and_only_once():
    values = losses([1.0, 0.9, math.nan, math.nan, math.inf])
    assert alarms_of(*values, rank=1) == ["loss is nan since step 3 (rank 1)"]
    assert alarms_of(*values, ("loss", 2, math.nan), ("loss", 9, math.inf), rank=1) == [
        "loss is nan since step 2 (rank 1)"  # which was heard of later
    ]
    assert alarms_of(("val_loss", 7, -math.inf)) == ["val_loss is -inf since step 7 (rank 0)"]


def test_many_broken_curves_are_told_by_the_first_few():
    points = [(f"norm {number}", 1, math.nan) for number in range(9)]
    assert len(alarms_of(*points)) == Alarms.MAX_BROKEN


def test_a_loss_that_runs_away_is_told_while_it_goes_on():
    falls = [2.0 * 0.97**step + 0.1 for step in range(100)]
    rises = [0.2 * 1.2**step for step in range(30)]
    (text,) = alarms_of(*losses(falls + rises))
    assert text.startswith("loss has risen to ") and " from 0.2" in text


@pytest.mark.parametrize(
    "values",
    [
        [2.0 * 0.97**step + 0.1 for step in range(300)],
        [1.0 + (step % 7) for step in range(300)],
        [2.0 * 0.9**step for step in range(60)] + [3.0] + [0.01] * 30,
        [-step / 10 for step in range(200)],
        [0.1] * 10 + [0.5] * 10,
    ],
    ids=["falls", "noisy", "one spike", "negative", "short"],
)
def test_ordinary_losses_raise_no_alarm(values):
    assert alarms_of(*losses(values)) == []


def test_losses_that_pull_against_each_other_are_not_judged():
    rising = losses([0.1] * 50 + [5.0] * 100)
    assert len(alarms_of(*rising)) == 1
    assert alarms_of(("loss/2", 1, 1.0), *rising) == []


def beats(*entered, inside):
    return [Beat(entered=n, inside=rank in inside) for rank, n in enumerate(entered)]


def looked(ranks_seen, live=(0, 1)):
    stragglers = Stragglers()
    for number, seen in enumerate(ranks_seen):
        stragglers.look(seen, live, now=1.0 + number * 1.01 * LOOK_EVERY_S)
    return stragglers.slowest


def test_the_rank_that_has_not_come_while_others_wait_is_the_straggler():
    late = beats(6, 5, inside={0})
    together = beats(6, 6, inside={0, 1})
    rank, share = looked([late, late, late, together] * 25)
    assert rank == 1 and 0.7 < share < 0.8


def test_ranks_that_take_turns_to_be_late_are_no_stragglers():
    assert looked([beats(6, 5, inside={0}), beats(5, 6, inside={1})] * 50) is None
    assert looked([beats(6, 6, inside={0, 1})] * 100) is None
    assert looked([beats(5, 5, inside=set())] * 100) is None


def test_a_rank_that_has_ended_keeps_nobody_waiting():
    assert looked([beats(9, 5, inside={0})] * 100, live=(0,)) is None


def test_memory_and_processor_time_are_read_from_outside():
    burn = "import time\nx = bytearray(60_000_000)\nprint(flush=True)\nwhile True: pass"
    child = subprocess.Popen([sys.executable, "-c", burn], stdout=subprocess.PIPE)
    try:
        child.stdout.readline()
        gauges = Gauges()
        gauges.handle(Started(0, child.pid, "cpu", 1))
        gauges._read()
        time.sleep(0.3)
        gauges._read()
        gauge = gauges.ranks[0]
        assert gauge.rss_bytes > 60_000_000
        assert 0.01 < gauge.cpu_share < 1.2
        assert gauge.gpu_bytes is None
        gauges.handle(Exited(0, 0))
        assert gauges.ranks == {} and gauges.peak_bytes[0] > 60_000_000
    finally:
        child.kill()
        child.communicate()


def test_a_process_that_has_ended_and_a_gpu_without_a_driver_are_unknown():
    gauges = Gauges()
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    gauges.handle(Started(0, child.pid, "cuda:0", 1))
    gauges.tick()
    gauge = gauges.ranks[0]
    assert (gauge.rss_bytes, gauge.cpu_share) == (None, None)


def test_a_row_says_what_a_rank_does_and_uses():
    ranks = Ranks(2, None)
    assert [row.text() for row in ranks.rows()] == ["rank 0: starting", "rank 1: starting"]
    ranks.handle(Started(0, os.getpid(), "cpu", 1))
    ranks.handle(Progress(0, 1234))
    ranks.tick()
    row = ranks.rows()[0].text()
    assert row.startswith("rank 0: training · step 1,234 · ") and row.endswith("B")
    ranks.handle(Failed(1, "ValueError", "x", [], ""))
    ranks.handle(Exited(1, 1))
    assert ranks.rows()[1].text() == "rank 1: raised ValueError"
    ranks.handle(Returned(0, 0))
    assert ranks.last_rows()[0].startswith("rank 0: done · step 1,234 · up to ")


def test_no_process_here_is_taken_for_a_rank_of_another_machine():
    controls = Controls(lambda: None, lambda: None, True, lambda: beats(0, inside=set()))
    ranks = Ranks(2, controls)
    for rank in (0, 1):
        ranks.handle(Started(rank, os.getpid(), "cpu", 1))
    ranks.tick()
    assert [len(row.facts) for row in ranks.rows()] == [1, 0]


def test_the_share_of_time_that_a_rank_waits_for_data_is_that_of_late():
    ranks = Ranks(1, None)
    ranks._note_wait(Progress(0, 1, data_wait_s=5.0), 10.0)
    ranks._note_wait(Progress(0, 2, data_wait_s=5.8), 12.0)
    assert ranks.rows()[0].facts == ("waits for data 40% (much)",)
    ranks._note_wait(Progress(0, 3, data_wait_s=5.9), 14.0)
    assert ranks.rows()[0].facts == ("waits for data 5%",)


def test_the_marked_rank_is_the_one_for_which_the_others_wait():
    late = beats(6, 5, inside={0})
    controls = Controls(lambda: None, lambda: None, True, lambda: late)
    ranks = Ranks(2, controls)
    ranks._stragglers.slowest  # noqa: B018 - nobody yet
    for number in range(60):
        ranks._stragglers.look(late, [0, 1], now=1.0 + number)
    assert [row.mark for row in ranks.rows()] == ["", "the others wait for it, 100% of the time"]
    ranks.handle(Returned(1, 0))
    assert [row.mark for row in ranks.rows()] == ["", ""]


def test_tails_keep_the_newest_lines_and_fold_the_same_ones():
    tails = Tails()
    tails.handle(Output(0, "stdout", "a\na\na\nb\n"))
    tails.handle(Output(1, "stderr", "".join(f"{n}\n" for n in range(200))))
    tails.handle(Output(0, "stderr", "10%\r20%\r"))
    tails.handle(Output(0, "stdout", "for the run\n", announced=True))
    texts = tails.texts()
    assert texts[0] == "a  (x3)\nb\n20%"
    assert texts[1].splitlines() == [str(n) for n in range(200 - MAX_LINES, 200)]
    assert tails.version == 3


def panel(controls=None):
    return Panel(History(), "run", 2, controls)


def test_a_task_is_shown_once_it_takes_long_and_not_when_it_is_over():
    shown = panel()
    saving, starting = Task(0, "saving", 1, 4, "files"), Task(-1, "starting forkserver", 0)
    shown._note_task(saving, 100.0)
    assert shown.tasks(100.5) == []
    shown._note_task(replace(saving, done=2), 100.0 + TASK_AFTER_S)
    shown._note_task(starting, 100.0 + TASK_AFTER_S)
    assert shown.tasks(100.1 + TASK_AFTER_S) == ["saving 2 of 4 files (rank 0)"]
    shown._note_task(replace(saving, done=4), 102.0)
    assert shown.tasks(103.0) == ["starting forkserver"]
    assert shown.tasks(200.0) == [], "nothing is heard of it any more"


def test_a_long_task_is_something_to_show_before_the_first_step():
    shown = panel()
    shown.handle(Task(-1, "starting forkserver", 0))
    shown.tick()
    assert shown.began is None
    time.sleep(1.1 * TASK_AFTER_S)
    shown.tick()
    assert shown.began is not None


def test_a_button_calls_what_it_says_while_the_run_goes_on():
    asked = []
    controls = Controls(lambda: asked.append("stop"), lambda: asked.append("kill"), False)
    shown = panel(controls)
    assert shown.hint == ""
    for what in ("stop", "kill", "dance"):
        shown.ask(what)
    assert asked == ["stop", "kill"]
    assert shown.hint == "it stops after this step…"
    shown.close()
    shown.ask("stop")
    assert asked == ["stop", "kill"], "a click that comes too late does no harm"


def test_a_blocking_run_says_which_button_stops_it():
    shown = panel(Controls(lambda: None, lambda: None, True))
    assert "interrupt button" in shown.hint
    shown.close()
    assert shown.hint == "" and panel().hint == ""

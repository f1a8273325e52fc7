"""Runs without a launch: when each begins and ends, how long it took, and whose an error is."""

from __future__ import annotations

import time

import pytest

from notebook_accel.events.model import Progress
from notebook_accel.ui.pens import Pen, Stage


class Shown:
    def __init__(self, name, number, told):
        self.name, self.number, self.told = name, number, told
        self.events = []

    def handle(self, event):
        self.events.append(event)

    def close(self, at, error):
        self.told.append((self.name, self.number, type(error).__name__ if error else "", at))


@pytest.fixture
def told():
    return []


@pytest.fixture
def training(told):
    stage = Stage()

    class Training:
        def __init__(self, name):
            self.step = 0
            self.pen = Pen(stage, lambda history, number: Shown(name, number, told))

        def go(self, steps=1):
            for _ in range(steps):
                self.step += 1
                step = self.step
                self.pen.stepped(step, [("loss", 1 / step)], lambda: [Progress(0, self.step)])

    Training.stage = stage
    return Training


def endings(told):
    return [one[:3] for one in told]


def test_trainings_that_follow_each_other_end_before_the_next_and_are_numbered(training, told):
    for name in "abc":
        training(name).go(3)
        assert [one[0] for one in told] == [one for one in "ab" if one < name]
    training.stage.end()
    assert endings(told) == [("a", 1, ""), ("b", 2, ""), ("c", 3, "")]
    training("d").go()
    training.stage.end()
    assert endings(told)[3] == ("d", 1, ""), "the next cell counts anew"


def test_a_short_training_that_goes_on_from_a_checkpoint_is_shown(training, told):
    one = training("resumed")
    one.pen.flush()  # as a checkpoint that is loaded does: there is nothing to draw yet
    one.go(3)
    training.stage.end()
    assert endings(told) == [("resumed", 1, "")]


def test_the_two_trainings_of_one_loop_go_on_side_by_side(training, told):
    one, other = training("generator"), training("discriminator")
    for _ in range(3):
        one.go()
        other.go()
    assert not told
    training.stage.end()
    assert endings(told) == [("generator", 1, ""), ("discriminator", 2, "")]
    for _ in range(2):  # in the next cell too
        one.go()
        other.go()
    assert len(told) == 2


def test_an_error_is_of_the_training_that_wrote_last(training, told):
    training("a").go()
    training("b").go()
    training.stage.end(ValueError("x"))
    assert endings(told) == [("a", 1, ""), ("b", 2, "ValueError")]


def test_an_error_before_the_first_step_of_a_training_is_not_of_the_one_before(training, told):
    training("a").go()
    training("b")
    training.stage.end(ValueError("x"))
    assert endings(told) == [("a", 1, "")]


def test_a_device_that_failed_does_not_hide_the_error(training, told):
    def read():
        raise RuntimeError("device-side assert triggered")

    one = training("a")
    one.pen.at_end.append(read)
    one.go()
    training.stage.end(ValueError("x"))
    assert endings(told) == [("a", 1, "ValueError")]
    one.go()
    with pytest.raises(RuntimeError, match="device-side assert"):
        training.stage.end()


def test_a_training_takes_until_its_last_word_not_until_its_cell_ends(training, told):
    one = training("a")
    one.go(5)
    last = time.monotonic()
    time.sleep(0.1)
    training.stage.end()
    assert told[0][3] <= last


def test_the_numbers_noted_last_are_shown_before_the_end(training, told):
    one = training("a")
    one.go(200)
    run = one.pen._run
    training.stage.end()
    assert [event.step for event in run.events if isinstance(event, Progress)][-1] == 200
    assert one.pen.history.steps("loss")[-1] == 200

"""When a run was at which step."""

from notebook_accel.events.model import Metrics, Progress
from notebook_accel.events.timeline import Timeline


def test_marks_say_step_seconds_and_epochs_of_the_lowest_rank():
    timeline = Timeline()
    timeline.handle(Progress(1, 1, 0, 1, 4), 10.0)
    timeline.handle(Metrics(0, []), 10.5)
    timeline.handle(Progress(0, 2, 0, 2, 4), 11.0)
    timeline.handle(Progress(1, 3, 0, 3, 4), 12.0)
    timeline.handle(Progress(0, 6, 1, 2, 4), 13.0)
    assert timeline.with_newest() == [(1, 0, 0.25), (2, 1, 0.5), (6, 3, 1.5)]


def test_a_long_run_has_few_marks_and_the_newest_one():
    timeline = Timeline()
    for step in range(1, 10_001):
        timeline.handle(Progress(0, step, 0, step, 10_000), float(step))
    marks = timeline.with_newest()
    assert len(marks) <= Timeline.MAX_MARKS
    assert marks[0] == (1, 0, 0.0001) and marks[-1] == (10_000, 9_999, 1.0)
    assert marks == sorted(marks)


def test_a_second_loop_goes_on_where_the_first_one_ended():
    timeline = Timeline()
    for step in (1, 2):
        timeline.handle(Progress(0, step, 0, step, 2), float(step))
    timeline.handle(Progress(0, 1, 0, 1, 2), 3.0)
    assert timeline.with_newest()[-1] == (3, 2, 1.5)

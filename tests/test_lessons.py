"""The three lessons print their known lines, to the letter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LESSONS = Path(__file__).parent / "lessons"
TOY_CLASSIFIER = [
    "device: cpu | processes: 1",
    "epoch 0  loss 0.479",
    "epoch 1  loss 0.149",
    "epoch 2  loss 0.077",
]
SCORING = ["scored 150 examples, accuracy 0.39"]
ACCUMULATION = ["batches: 8 | optimizer updates: 2"]


def said_by(code: list[str]) -> list[str]:
    env = {**os.environ, "PYTHONPATH": f"{LESSONS.parents[1]}{os.pathsep}{LESSONS}"}
    done = subprocess.run(
        [sys.executable, *code], env=env, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("lesson", "lines"),
    [("toy_classifier", TOY_CLASSIFIER), ("scoring", SCORING), ("accumulation", ACCUMULATION)],
)
def test_a_lesson_run_as_a_script_prints_its_lines(lesson: str, lines: list[str]) -> None:
    assert said_by([str(LESSONS / f"{lesson}.py")]) == lines


@pytest.mark.parametrize("num_processes", [2, 8])
def test_scoring_counts_every_example_once_on_any_number_of_ranks(num_processes: int) -> None:
    launch = (
        "from scoring import main\n"
        "from notebook_accel import notebook_launcher, shutdown\n"
        "if __name__ == '__main__':\n"
        f"    notebook_launcher(main, num_processes={num_processes}, device='cpu')\n"
        "    shutdown()\n"
    )
    lines = said_by(["-c", launch])
    assert [line for line in lines if "scored" in line] == SCORING


def test_the_lessons_launched_on_one_worker_print_the_same_lines() -> None:
    launch = (
        "import toy_classifier, accumulation\n"
        "from notebook_accel import notebook_launcher, shutdown\n"
        "if __name__ == '__main__':\n"
        "    for lesson in (toy_classifier, accumulation):\n"
        "        notebook_launcher(lesson.main, num_processes=1, device='cpu')\n"
        "    shutdown()\n"
    )
    lines = said_by(["-c", launch])
    for expected in TOY_CLASSIFIER + ACCUMULATION:
        assert expected in lines

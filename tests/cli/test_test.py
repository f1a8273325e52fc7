"""``notebook-accel test``: a self-check that trains for real, and notices when it goes wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from notebook_accel.cli.test import compare, findings
from tests.cli.typing_in import surroundings, typed
from tests.support.launches import wait_for

NAMES = ("launch", "collectives", "sharding", "checkpoint", "losses")


def test_all_checks_pass_on_two_processes_under_a_file(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text("device: cpu\nnum_processes: 2\n")
    done = typed(
        "test", "--config_file", str(file), then="sys.exit(code + ('torch' in sys.modules))"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"testing 2 processes on this machine (settings of {file})" in done.stdout
    found = [line.split()[:2] for line in done.stdout.splitlines() if line[:2] in ("ok", "ba")]
    assert found == [["ok", name] for name in NAMES]
    assert "launch      2 ranks, the first on cpu" in done.stdout
    assert done.stdout.endswith("all checks passed\n")


@pytest.mark.slow
def test_all_checks_pass_for_fsdp_too(tmp_path: Path) -> None:
    file = tmp_path / "fsdp.yaml"
    file.write_text("use_cpu: true\nnum_processes: 2\ndistributed_type: FSDP\n")
    done = typed("test", "--config_file", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_of_the_environment_need_be_on_the_path(tmp_path: Path) -> None:
    """E6: the checks are started by this interpreter, not by a command's name."""
    words = [sys.executable, "-m", "notebook_accel", "test", "--cpu", "--num_processes", "1"]
    env = surroundings({"PATH": str(tmp_path)})
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all checks passed" in done.stdout


@pytest.mark.slow
def test_one_process_has_nothing_to_compare_with() -> None:
    found = list(findings(1, ["--cpu"], timeout_s=100))
    assert [(one.level, one.topic) for one in found] == [("ok", name) for name in NAMES[:-1]]


def test_ranks_that_cannot_start_are_told_with_their_last_words(tmp_path: Path) -> None:
    """An interface that does not exist: gloo refuses in every rank."""
    env = surroundings({"GLOO_SOCKET_IFNAME": "nowhere0"})
    done = typed("test", "--cpu", "--num_processes", "2", env=env)
    assert done.returncode == 1
    assert "bad   launch      the checks on 2 processes ended with exit code" in done.stdout
    assert "nowhere0" in done.stderr
    assert "1 of the checks failed" in done.stdout


def test_a_crowd_is_refused_before_anything_starts() -> None:
    done = typed("test", "--cpu", "--num_processes", "100000")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("ConfigError: 100000 processes on ")
    assert "a launch starts as many as it is told" in done.stderr


def test_everything_ends_with_a_test_that_is_killed(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "notebook_accel", "test", "--cpu", "--num_processes", "2"]
    running = subprocess.Popen(words, env=surroundings(), stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: len(psutil.Process(running.pid).children(recursive=True)) >= 4, 60)
        below = psutil.Process(running.pid).children(recursive=True)
    finally:
        running.kill()
        running.wait()
    wait_for(lambda: not [one for one in below if lives(one)], timeout_s=30)


def lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_a_limit_ends_the_checks(capfd: pytest.CaptureFixture[str]) -> None:
    (found,) = findings(2, ["--cpu"], timeout_s=0.3)
    assert found.level == "bad" and "took longer than 0.3 s" in found.what


def test_losses_that_differ_are_bad_and_the_tolerance_is_the_precisions() -> None:
    told = {"losses": [1.0, 0.5], "num_processes": 2, "mixed_precision": "no"}
    assert compare(told, {"losses": [1.0, 0.5]}).level == "ok"
    wrong = compare(told, {"losses": [1.0, 0.501]})
    assert wrong.level == "bad" and "largest difference 2.0e-03" in wrong.what
    assert compare({**told, "mixed_precision": "bf16"}, {"losses": [1.0, 0.501]}).level == "ok"

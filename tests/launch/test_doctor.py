"""What the doctor finds: facts with what, why and what to do, and ranks that really ran."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import notebook_accel
from notebook_accel.errors import ConfigError
from notebook_accel.launch import doctor
from notebook_accel.launch.trial import Trial, Wanted, ask_child, too_many, try_ranks


def test_the_doctor_starts_ranks_by_each_method_and_says_how_long_it_took() -> None:
    found = notebook_accel.doctor(2)
    assert found.healthy, found
    said = repr(found)
    assert said.startswith("2 processes can train here\n")
    for topic in ("gloo", "forkserver"):
        line = next(str(one) for one in found.findings if one.topic == topic)
        assert line.startswith(f"ok    {topic}")
        assert "2 ranks on 2 CPU processes, started by" in line and "added up in" in line
    assert max(map(len, said.splitlines())) <= 80


def test_ranks_that_cannot_meet_are_a_finding_and_no_exception(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    trial = try_ranks(2)
    assert trial.error
    found = doctor.Diagnosis((doctor.trial_finding("gloo", trial),), 2)
    assert not found.healthy
    assert repr(found).startswith("2 processes cannot train here as things are\n")
    assert "2 ranks on 2 CPU processes failed: " in repr(found)


def test_no_processes_cannot_be_examined() -> None:
    with pytest.raises(ConfigError, match="num_processes=0 is out of range"):
        notebook_accel.doctor(0)


def test_a_failed_trial_names_error_mechanism_and_cure() -> None:
    trial = Trial("fork", "2 CPU processes", 2, error="WorkerDied: rank 1", why="memory")
    lines = str(doctor.trial_finding("gloo", trial)).splitlines()
    assert lines[0] == "bad   gloo        2 ranks on 2 CPU processes failed: WorkerDied: rank 1"
    assert lines[1].strip() == "why: memory"
    assert lines[2].strip().startswith("do: ")


def test_a_taken_port_and_small_shared_memory_are_notes_with_a_cure(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        (found,) = doctor.ports(holder.getsockname()[1])
    assert found.level == "note" and "is taken" in found.what and "use_port" in found.fix
    (found,) = doctor.shared_memory(str(tmp_path), enough=2**60)
    assert found.level == "note" and "--shm-size" in found.fix and "SIGBUS" in found.why
    assert not list(doctor.shared_memory(str(tmp_path / "absent")))


def test_leftovers_of_another_launcher_are_named() -> None:
    (found,) = doctor.leftovers({"RANK": "0", "WORLD_SIZE": "2"})
    assert found.what == "RANK=0, WORLD_SIZE=2 in the environment"
    (found,) = doctor.leftovers({"OMP_NUM_THREADS": "4096"})
    assert found.what.startswith("OMP_NUM_THREADS=4096, but ")
    assert not list(doctor.leftovers({}))


def test_a_process_that_holds_a_device_is_found_from_outside(tmp_path: Path) -> None:
    (tmp_path / "device0").touch()
    code = f"held = open('{tmp_path}/device0'); print('open', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        pattern = f"^{tmp_path}/device"
        (found,) = doctor.kernel(holder.pid, pattern)
        assert f"process {holder.pid}" in found.what and f"{tmp_path}/device0 open" in found.what
        (other,) = doctor.holders(pattern)
        assert f"process {holder.pid}" in other.what
        (clean,) = doctor.kernel(holder.pid)
        assert clean.level == "ok" and clean.what.endswith("has no device open")
        holder.stdin.close()
    (gone,) = doctor.kernel(holder.pid)
    assert gone.level == "bad" and gone.what == f"there is no process {holder.pid} here"


def test_diagnoses_are_plain_data_too() -> None:
    found = doctor.Diagnosis((doctor.Finding("bad", "ports", "closed", "a", "b"),), 3)
    assert json.loads(json.dumps(doctor.as_data(found))) == {
        "healthy": False,
        "num_processes": 3,
        "findings": [{"level": "bad", "topic": "ports", "what": "closed", "why": "a", "fix": "b"}],
    }


def test_more_processes_than_the_cores_can_serve_are_not_tried() -> None:
    def attempts(wanted: Sequence[Wanted]) -> list[Trial]:
        raise AssertionError("they were tried")

    (found,) = doctor.trials(100_000, 0, attempts)
    assert (found.level, found.topic) == (doctor.BAD, "cores")
    assert "100000 processes on" in found.what and "not tried" in found.what
    assert found.why and "or fewer" in found.fix
    assert too_many(8, 2) is None and too_many(9, 2) is not None


def test_a_process_that_is_not_there_is_sought_where_it_can_be_found() -> None:
    (found,) = doctor.kernel(99_999_999)
    assert found.what == "there is no process 99999999 here"
    assert "ps aux | grep ipykernel" in found.fix and "jupyter kernel" not in found.fix


def test_outside_of_a_notebook_no_kernel_is_spoken_of() -> None:
    (found,) = doctor.start_methods()
    assert found.what.startswith("workers start by ") and "this process" in found.what
    assert "kernel" not in found.what


def test_a_finding_tells_the_wait_of_a_first_launch_apart_from_the_run() -> None:
    trial = Trial("forkserver", "2 CPU processes", 2, took_s=0.52, waited_s=4.1)
    said = doctor.trial_finding("forkserver", trial).what
    assert said.endswith("added up in 0.5 s; the first launch waits 4 s for its imports")
    quick = Trial("fork", "2 CPU processes", 2, took_s=0.52, waited_s=0.1)
    assert doctor.trial_finding("gloo", quick).what.endswith("added up in 0.5 s")


def test_all_trials_are_made_by_one_process() -> None:
    asked: list[int] = []

    def attempts(wanted: Sequence[Wanted]) -> list[Trial]:
        asked.append(len(wanted))
        return [Trial(**one) for one in ask_child([dict(vars(one)) for one in wanted])]

    found = list(doctor.trials(2, 0, attempts))
    assert asked == [len(found)] and all(one.level == doctor.GOOD for one in found), found


def test_a_misspelt_variable_is_a_finding() -> None:
    (found,) = doctor.leftovers({"ACCELERATE_MIXED_PRECISON": "bf16"})
    assert found.level == doctor.NOTE and "ACCELERATE_MIXED_PRECISON is not known" in found.what
    assert found.fix == "set ACCELERATE_MIXED_PRECISION instead"

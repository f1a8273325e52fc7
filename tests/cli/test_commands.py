"""``demo``, ``doctor``, ``env``, ``tpu-config`` and what they share: a child that knows torch."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from notebook_accel.cli.child import call
from notebook_accel.errors import ConfigError, LaunchError
from tests.cli.typing_in import surroundings, typed

LIGHT = "sys.exit(code + 5 * ('torch' in sys.modules))"


def test_the_demo_trains_and_prints_its_accuracy() -> None:
    done = typed("demo", "--cpu", then=LIGHT)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"accuracy +(0\.\d+) on 1000 digits it never saw", done.stdout)
    assert found and float(found[1]) >= 0.9
    assert "GuardRail" not in done.stdout + done.stderr


def test_the_doctor_tries_ranks_and_says_so() -> None:
    done = typed("doctor", "--json", then=LIGHT)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["healthy"] and told["num_processes"] == 2
    topics = {one["topic"]: one["level"] for one in told["findings"]}
    assert topics["gloo"] == topics["forkserver"] == "ok"
    done = typed("doctor", "--pid", str(os.getpid()))
    assert f"process {os.getpid()} " in done.stdout and done.returncode == 0


def test_env_as_json_has_versions_settings_and_findings(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text("num_processes: 2\n")
    env = surroundings({"WORLD_SIZE": "2", "RANK": "0"})
    done = typed("env", "--json", "--config_file", str(file), env=env, then=LIGHT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["torch"] and "usable cores" in found
    assert found["host"] == "terminal, which shows text"
    assert found["settings"].splitlines()[0] == str(file)
    assert "num_processes" in found["settings"]
    (finding,) = [one for one in found["findings"] if one["topic"] == "variables"]
    assert finding["what"] == "RANK=0, WORLD_SIZE=2 in the environment"
    said = typed("env", "--config_file", str(file), env=env).stdout
    assert "note  variables   RANK=0, WORLD_SIZE=2 in the environment" in said


def test_env_tells_of_a_broken_file_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("num_processes: many\n")
    done = typed("env", "--config_file", str(tmp_path / "bad.yaml"))
    assert done.returncode == 0
    assert "line 1: num_processes: many" in done.stdout and "usable cores" in done.stdout


def test_tpu_config_is_answered_plainly() -> None:
    done = typed("tpu-config", "--tpu_name", "pod-1", "--command", "echo hi", "--debug")
    assert done.returncode == 2
    assert done.stderr.startswith("NotHere: tpu-config starts commands on the hosts of a TPU pod")
    assert "gcloud compute tpus tpu-vm ssh pod-1 --zone ZONE --worker all" in done.stderr


def test_a_child_gives_values_our_errors_and_its_death_back() -> None:
    assert call("builtins:dict", a=[1, None, "x"]) == {"a": [1, None, "x"]}
    with pytest.raises(ConfigError, match="optimizer='x' is not known") as refused:
        call(
            "notebook_accel.config.schema:check_choice", name="optimizer", value="x", choices=["y"]
        )
    assert refused.value.fix
    with pytest.raises(LaunchError, match="ended by exit code 3") as died:
        call("os:_exit", status=3)
    assert "_exit of os" in died.value.why
    with pytest.raises(LaunchError, match="ended by signal 9"):
        call("tests.cli.typing_in:kill_myself")

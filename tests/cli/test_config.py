"""``notebook-accel config`` as a person uses it: menus in a pseudo-terminal, lines, and options."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
import yaml

from notebook_accel.config.settings import SETTINGS
from tests.cli.typing_in import surroundings, typed

ENTER, DOWN, WIPE = "\r", "\x1b[B", "\x7f" * 8
WAIT_S = 60
TEXTS = {name: one.question for name, one in SETTINGS.items() if one.question}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "settings"


def at_home(home: Path, terminal: str = "xterm-256color") -> dict[str, str]:
    env = surroundings({
        "XDG_CONFIG_HOME": str(home), "HF_HOME": str(home / "hf"), "TERM": terminal,
        "PROMPT_TOOLKIT_NO_CPR": "1", "HOME": str(home),
    })  # fmt: skip
    env.pop("NOTEBOOK_ACCEL_CONFIG", None)  # other tests read no file
    return env


@pytest.fixture
def terminal(home: Path) -> Iterator[pexpect.spawn]:
    """A pseudo-terminal in which the command runs."""
    words = ["-m", "notebook_accel", "config"]
    child = pexpect.spawn(
        sys.executable, words, env=at_home(home), encoding="utf-8", dimensions=(50, 100),
        timeout=WAIT_S,
    )  # fmt: skip
    yield child
    child.close(force=True)


def answer(child: pexpect.spawn, keys: dict[str, str]) -> list[str]:
    """Answer each question as it comes, Enter where nothing is written down; give those asked.

    A menu draws its question again with every key: each is answered once.
    """
    asked: list[str] = []
    while True:
        left = [name for name in TEXTS if name not in asked]
        found = child.expect_exact(["written to", *(TEXTS[name] for name in left)])
        if found == 0:
            child.expect(pexpect.EOF)
            return asked
        asked.append(left[found - 1])
        child.send(keys.get(asked[-1], "") + ENTER)


def written(home: Path) -> dict:
    return yaml.safe_load((home / "notebook_accel/config.yaml").read_text())


def test_menus_lead_to_deepspeed_with_zero_2(terminal: pexpect.spawn, home: Path) -> None:
    asked = answer(
        terminal,
        {"num_processes": f"{WIPE}2", "mixed_precision": DOWN * 2, "strategy": DOWN * 2},
    )
    assert asked[:5] == ["device", "num_nodes", "num_processes", "mixed_precision", "strategy"]
    said = written(home)
    assert said["num_processes"] == 2
    assert said["mixed_precision"] == "bf16"
    assert said["strategy"] == "deepspeed"
    assert said["deepspeed_config"]["zero_stage"] == 2
    terminal.wait()
    assert terminal.exitstatus == 0


def test_menus_lead_to_fsdp_fully_sharded_without_offload(
    terminal: pexpect.spawn, home: Path
) -> None:
    terminal.expect_exact(TEXTS["device"])
    terminal.expect_exact("tpu")
    terminal.send(ENTER)
    for name, keys in {"num_nodes": "", "num_processes": f"{WIPE}2", "mixed_precision": ""}.items():
        terminal.expect_exact(TEXTS[name])
        terminal.send(keys + ENTER)
    terminal.expect_exact(TEXTS["strategy"])
    terminal.expect_exact("megatron_lm")
    terminal.send(DOWN + ENTER)
    terminal.expect_exact(TEXTS["fsdp_version"])
    terminal.send(ENTER)
    answer(terminal, {})
    said = written(home)
    assert said["strategy"] == "fsdp"
    assert said["fsdp_config"]["fsdp_sharding_strategy"] == "FULL_SHARD"
    assert said["fsdp_config"]["fsdp_offload_params"] is False


def test_ctrl_c_leaves_no_file_and_no_traceback(terminal: pexpect.spawn, home: Path) -> None:
    terminal.expect_exact(TEXTS["device"])
    terminal.send(ENTER)
    terminal.expect_exact(TEXTS["num_nodes"])
    terminal.sendintr()
    terminal.expect(pexpect.EOF)
    assert "Traceback" not in terminal.before
    terminal.wait()
    assert terminal.exitstatus == 130
    assert not home.exists() or not list(home.rglob("*config*"))


def test_numbered_lines_where_the_terminal_draws_no_menus(home: Path) -> None:
    """As in Colab's ``!``: no terminal at all. Wrong answers are asked again."""
    said = "99\ncpu\n\nmany\n2\nbf16\n\n\n\n\n\n\n\n"
    done = typed("config", env=at_home(home, "dumb"), said=said)
    assert done.returncode == 0, done.stderr
    assert "'99' is none of them: write a number from 1 to " in done.stdout
    assert "num_processes" in done.stdout
    assert "\x1b" not in done.stdout
    found = written(home)
    assert (found["device"], found["num_processes"], found["mixed_precision"]) == ("cpu", 2, "bf16")


@pytest.mark.parametrize(("typed_stage", "stage"), [("2", 2), ("3", 3), ("", 2), ("0", 0)])
def test_a_number_that_is_an_answer_is_no_place_in_the_list(
    home: Path, typed_stage: str, stage: int
) -> None:
    """Stages were listed 2, 0, 1, 3: whoever typed 2 got the stage in the second place."""
    said = f"cpu\n\n3\nbf16\ndeepspeed\n\n{typed_stage}\n" + "\n" * 12
    done = typed("config", env=at_home(home, "dumb"), said=said)
    assert done.returncode == 0, done.stderr
    listed = done.stdout[done.stdout.index(TEXTS["zero_stage"]) :].splitlines()[1:6]
    assert [line.strip() for line in listed[:4]] == ["0", "1", "* 2", "3"]
    assert listed[4].startswith("[2]: ")
    assert written(home)["deepspeed_config"]["zero_stage"] == stage
    rows = done.stdout[done.stdout.index("written to") :].partition("use it")[0].splitlines()[1:]
    starts = {len(row) - len(row.split(None, 1)[1]) for row in rows}
    assert len(starts) == 1, rows  # one column of values, however long a name is


def test_axes_are_proposed_what_fills_the_processes(home: Path) -> None:
    """Enter at every axis once wrote sizes that no launch could use."""
    before = "cpu\n\n4\n\n\n"
    for keys, sizes in (("yes\n", [4, 1, 1, 1]), ("yes\n2\n1\n", [2, 1, 2, 1])):
        done = typed("config", env=at_home(home, "dumb"), said=before + keys + "\n" * 12)
        assert done.returncode == 0, done.stderr + done.stdout
        found = written(home)["parallelism_config"]
        axes = ("dp_replicate", "dp_shard", "tp", "cp")
        assert [found[f"parallelism_config_{axis}_size"] for axis in axes] == sizes
        (home / "notebook_accel/config.yaml").unlink()


def test_in_a_cell_nobody_could_type_and_colab_gets_lines(home: Path) -> None:
    """``!`` gives a pseudo-terminal; JPY_PARENT_PID says that a kernel is behind it."""

    def begun(**env: str) -> str:
        child = pexpect.spawn(
            sys.executable, ["-m", "notebook_accel", "config"], encoding="utf-8", timeout=WAIT_S,
            env={**at_home(home), "JPY_PARENT_PID": "1", **env}, dimensions=(50, 100),
        )  # fmt: skip
        child.expect([pexpect.EOF, r"\[1\]: "])
        said = str(child.before)
        child.close(force=True)
        return said

    assert begun().startswith("ConfigError: questions cannot be answered in a cell")
    assert "1 * cpu" in begun(COLAB_RELEASE_TAG="release")


def test_an_input_that_ends_is_told_how_to_do_without(home: Path) -> None:
    done = typed("config", env=at_home(home), said="")
    assert done.returncode == 2
    assert "nobody answers: What do you train on?" in done.stderr
    assert "--num_processes 2 --mixed_precision bf16" in done.stderr
    assert not (home / "notebook_accel").exists()


def test_options_are_written_without_questions_and_shown_with_their_line(home: Path) -> None:
    env = at_home(home)
    words = ("config", "--num-processes", "2", "--mixed_precision", "bf16", "--zero_stage", "3")
    assert typed(*words, env=env, said="").returncode == 0
    shown = typed("config", "show", env=env)
    rows = {line.split()[0]: line.split(None, 2) for line in shown.stdout.splitlines() if line}
    assert rows["num_processes"][1:] == ["2", "line 1"]
    assert rows["zero_stage"][1] == "3" and rows["zero_stage"][2].startswith("line ")
    assert shown.stdout.startswith("file: ~/notebook_accel/config.yaml\n")
    env["ACCELERATE_MIXED_PRECISION"] = "fp16"
    found = json.loads(typed("config", "show", "--json", env=env).stdout)["settings"]
    assert found["mixed_precision"] == {
        "value": "fp16", "from": "environment variable ACCELERATE_MIXED_PRECISION"
    }  # fmt: skip
    assert "max_restarts" not in found
    everything = json.loads(typed("config", "show", "--json", "--all", env=env).stdout)["settings"]
    assert everything["max_restarts"] == {"value": 0, "from": "default"}
    assert set(everything) == set(SETTINGS)


def test_default_writes_what_is_here_and_never_over_a_file(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    words = ("config", "default", "--config_file", str(path), "--accelerate")
    env = at_home(home)
    assert typed(*words, env=env).returncode == 0
    first = path.read_text()
    assert {"distributed_type", "compute_environment", "num_processes"} <= set(json.loads(first))
    assert "stays as it is" in typed(*words, env=env).stdout
    for again in (("config",), ("config", "default")):
        done = typed(*again, "--config_file", str(path), "--num_processes", "7", env=env)
        assert done.returncode == 2 and f"{path} is there already" in done.stderr
        assert "notebook-accel config update" in done.stderr
    assert path.read_text() == first


def test_update_keeps_what_is_there_and_the_form_of_the_file(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "theirs.yaml"
    path.write_text("distributed_type: MULTI_CPU\nnum_processes: 2\nmixed_precision: no\n")
    words = ("config", "update", "--config_file", str(path), "--mixed_precision", "bf16")
    done = typed(*words, env=at_home(home))
    assert done.returncode == 0, done.stderr
    found = yaml.safe_load(path.read_text())
    assert (found["mixed_precision"], found["num_processes"]) == ("bf16", 2)
    assert "distributed_type" in found
    done = typed("config", "update", "--config_file", "absent.yaml", env=at_home(home))
    assert done.returncode == 2
    assert "there is no configuration file absent.yaml" in done.stderr


@pytest.mark.parametrize("word", ["validate", "show", "update"])
def test_a_file_may_be_named_without_its_option(home: Path, tmp_path: Path, word: str) -> None:
    path = tmp_path / "acc.yaml"
    path.write_text("num_processes: 3\n")
    done = typed("config", word, str(path), env=at_home(home))
    assert done.returncode == 0, done.stderr
    assert str(path) in done.stdout and "3" in done.stdout


def test_validate_names_the_line_of_everything_that_is_wrong(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("num_processes: many\nmixed_precison: bf16\n")
    done = typed("config", "validate", "--config_file", str(path), env=at_home(home))
    assert done.returncode == 2
    assert f"{path}, line 1: num_processes: many" in done.stderr
    assert f"{path}, line 2" in done.stderr and "did you mean mixed_precision?" in done.stderr
    path.write_text("num_processes: 4\nnum_machines: 2\nmain_process_ip: 10.0.0.1\n")
    done = typed("config", "validate", "--config_file", str(path), env=at_home(home))
    assert done.returncode == 0, done.stderr
    assert "processes on each machine: 2" in done.stdout
    path.write_text("num_processes: 3\nnum_machines: 2\nmain_process_ip: 10.0.0.1\n")
    done = typed("config", "validate", "--config_file", str(path), env=at_home(home))
    assert done.returncode == 2 and "line 1: num_processes: 3 on 2 machines" in done.stderr
    done = typed("config", "validate", env=at_home(home))
    assert done.returncode == 2 and "there is no configuration file" in done.stderr


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("main_process_port: 99999", "line 1: main_process_port: 99999 is out of range"),
        (
            "num_processes: 4\nnum_machines: 2",
            "line 2: num_nodes: 2, without an address of the first machine",
        ),
        (
            "num_processes: 4\nuse_parallelism_config: true",
            "line 1: num_processes=4, but line 2 says use_parallelism_config=True",
        ),
        (
            "num_processes: 3\nparallelism_config:\n  tp_size: 2",
            "line 1: num_processes=3, but line 3 says parallelism_config_tp_size=2",
        ),
        (
            "distributed_type: MEGATRON_LM\nnum_processes: 3\nmegatron_lm_tp_degree: 2",
            "line 2: num_processes=3, but line 3 says megatron_lm_tp_degree=2",
        ),
        (
            "strategy: deepspeed\ndeepspeed_config_file: no.json",
            "line 2: deepspeed_config_file: no.json: there is no such file",
        ),
        ("mpirun_hostfile: hosts", "line 1: mpirun_hostfile: hosts: there is no such file"),
    ],
)
def test_validate_calls_nothing_valid_that_a_launch_refuses(
    home: Path, tmp_path: Path, text: str, what: str
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(f"{text}\n")
    done = typed("config", "validate", str(path), env=at_home(home))
    assert done.returncode == 2, done.stdout
    assert f"ConfigError: {path}, {what}" in done.stderr


def test_earlier_answers_are_proposed_also_accelerates_and_a_broken_file_is_no_dead_end(
    home: Path,
) -> None:
    env = at_home(home, "dumb")
    theirs = home / "hf/accelerate/default_config.yaml"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("distributed_type: MULTI_CPU\nnum_processes: 3\nmixed_precision: bf16\n")
    done = typed("config", env=env, said="\n" * 40)
    assert done.returncode == 0, done.stderr
    assert "~/hf/accelerate/default_config.yaml is there: its values are proposed; " in done.stdout
    assert (written(home)["num_processes"], written(home)["mixed_precision"]) == (3, "bf16")
    assert theirs.read_text().startswith("distributed_type: MULTI_CPU")
    (home / "notebook_accel/config.yaml").write_text("num_processes: [")
    done = typed("config", env=env, said="\n" * 40)
    assert done.returncode == 0, done.stderr
    assert "~/notebook_accel/config.yaml cannot be used; it is replaced" in done.stdout
    assert written(home)["num_processes"] == 1


def test_answers_that_do_not_go_together_are_asked_once_more(home: Path) -> None:
    """4 processes cannot be 3 copies, nor 2 of 1 rank each: the second time 4 copies."""
    first = ["", "", "4", "", "", "yes", "3", "2", "1", "1", "1", "", ""]
    second = [*[""] * 6, "4"]
    said = "\n".join([*first, *second, *[""] * 20])
    done = typed("config", env=at_home(home, "dumb"), said=said)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 does not divide 4 processes: write a divisor of 4" in done.stdout
    assert done.stdout.count("num_processes=4, but parallelism_config_dp_replicate_size=2") == 1
    assert "Once more, your answers are proposed:" in done.stdout
    assert written(home)["parallelism_config"]["parallelism_config_dp_replicate_size"] == 4


def test_a_killed_wizard_leaves_no_half_file(terminal: pexpect.spawn, home: Path) -> None:
    terminal.expect_exact(TEXTS["device"])
    os.kill(terminal.pid, signal.SIGKILL)
    terminal.expect(pexpect.EOF)
    assert not list(home.rglob("*")) if home.exists() else True

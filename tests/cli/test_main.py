"""The command line as a person types it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from notebook_accel import __version__
from notebook_accel.cli.env import device_lines
from notebook_accel.cli.main import COMMANDS
from notebook_accel.cli.parsing import Parser
from notebook_accel.launch.devices import Device
from tests.cli.typing_in import START, typed


def test_the_version_is_the_package_version() -> None:
    assert typed("--version").stdout == f"notebook-accel {__version__}\n"


def test_python_dash_m_runs_the_same_command() -> None:
    words = [sys.executable, "-m", "notebook_accel", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"notebook-accel {__version__}\n"


def test_env_names_versions_devices_cores_and_start_methods() -> None:
    done = typed("env")
    assert done.returncode == 0, done.stderr
    names = [line.split("  ")[0] for line in done.stdout.splitlines()]
    for name in ("notebook_accel", "torch", "accelerators", "usable cores", "start methods"):
        assert name in names


def test_env_answers_without_importing_torch() -> None:
    assert typed("env", then="sys.exit('torch' in sys.modules)").returncode == 0


def test_no_command_lists_all_of_them_and_is_a_usage_error() -> None:
    done = typed()
    assert done.returncode == 2
    assert done.stdout == typed("--help").stdout


def test_help_imports_next_to_nothing() -> None:
    heavy = "{'torch', 'numpy', 'yaml', 'questionary', 'IPython', 'pynvml'}"
    then = f"sys.exit(len({heavy} & set(sys.modules)))"
    assert typed("--help", then=then).returncode == 0


def test_an_unknown_command_names_the_nearest() -> None:
    done = typed("evn")
    assert done.returncode == 2
    assert done.stderr.startswith("notebook-accel: unknown command evn; did you mean env?\n  do: ")


def test_a_script_in_the_place_of_a_command_is_launched_by_launch() -> None:
    assert "do:  notebook-accel launch train.py --lr 1\n" in typed("train.py", "--lr", "1").stderr
    said = typed("--num_processes", "2", "train.py").stderr
    assert "do:  notebook-accel launch --num_processes 2 train.py\n" in said


def test_an_unknown_option_names_the_nearest() -> None:
    assert "unknown option --vresion; did you mean --version?" in typed("--vresion").stderr
    done = typed("env", "--hlep")
    assert done.returncode == 2
    assert done.stderr.startswith("notebook-accel env: unknown option --hlep; did you mean --help?")


@pytest.mark.parametrize("name", ["demo", "doctor", "test"])
def test_no_processes_at_all_are_refused_before_anything_starts(name: str) -> None:
    for number in ("0", "-3", "two"):
        done = typed(name, f"--num_processes={number}")
        assert done.returncode == 2
        assert done.stderr.startswith(
            f"notebook-accel {name}: --num_processes: {number} is no number of things"
        )


def test_an_unknown_word_lists_what_is_known_and_names_the_nearest() -> None:
    done = typed("config", "shwo")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "notebook-accel config: unknown word shwo; known are default, show, update, validate; "
        "did you mean show?\n"
    )


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    code = f"import os, sys\nos.close(os.dup(1))\n{START}sys.exit(code)"
    first = subprocess.Popen(
        [sys.executable, "-c", code, "env"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert first.stdout is not None and first.stderr is not None
    first.stdout.close()
    said = first.stderr.read().decode()
    first.stderr.close()
    assert first.wait(60) == 141
    assert said == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_fits_80_columns(name: str) -> None:
    """``--help`` ends by SystemExit, so each is asked in a process of its own."""
    done = typed(name, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: notebook-accel {name}")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert len(done.stdout.split("\n\n")) > 1


def test_the_overview_names_every_command_and_fits_80_columns() -> None:
    lines = typed("--help").stdout.splitlines()
    listed = {line.split()[0] for line in lines if line[:3].strip() and line.startswith("  ")}
    assert listed == set(COMMANDS)
    assert max(map(len, lines)) <= 80


def test_both_spellings_of_an_option_are_read_and_one_is_shown() -> None:
    parser = Parser(prog="p")
    parser.add_argument("-t", "--dry_run", action="store_true", help="do nothing")
    parser.add_argument("--num-shards", type=int, help="how many")
    read = parser.parse_args(["--dry-run", "--num_shards", "3"])
    assert read.dry_run and read.num_shards == 3
    shown = parser.format_help()
    assert "-t, --dry_run  " in shown and "--num-shards N  " in shown
    assert "--dry-run" not in shown and "--num_shards" not in shown


def test_devices_are_listed_with_number_name_and_memory() -> None:
    h200 = Device("cuda", 0, "NVIDIA H200", "GPU-1", 150_000_000_000, 140_000_000_000)
    lines = device_lines([h200, Device("mps", 0, "Apple GPU")])
    assert lines == "cuda:0 NVIDIA H200, 140.0 of 150.0 GB free\nmps Apple GPU"
    assert device_lines([]) == "none"

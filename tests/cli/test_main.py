"""The command line as a person types it."""

from __future__ import annotations

import subprocess
import sys

from notebook_accel import __version__
from notebook_accel.cli.env import device_lines
from notebook_accel.launch.devices import Device

START = "import sys; from notebook_accel.cli.main import main; code = main(); "


def typed(*words: str, then: str = "sys.exit(code)") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", START + then, *words], capture_output=True, text=True, timeout=60
    )


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


def test_a_missing_or_unknown_command_is_a_usage_error() -> None:
    assert typed().returncode == 2
    assert "invalid choice: 'lunch'" in typed("lunch").stderr


def test_devices_are_listed_with_number_name_and_memory() -> None:
    h200 = Device("cuda", 0, "NVIDIA H200", "GPU-1", 150_000_000_000, 140_000_000_000)
    lines = device_lines([h200, Device("mps", 0, "Apple GPU")])
    assert lines == "cuda:0 NVIDIA H200, 140.0 of 150.0 GB free\nmps Apple GPU"
    assert device_lines([]) == "none"

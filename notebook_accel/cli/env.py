"""What a bug report needs: versions, devices, cores and how workers can be started here."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from notebook_accel import __version__
from notebook_accel.launch.devices import Device, accelerators, usable_cores

_PACKAGES = ("torch", "ipykernel", "ipywidgets", "multiprocess", "cloudpickle", "matplotlib")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command: there are none."""


def run(options: argparse.Namespace) -> int:
    """Print the report."""
    print(report())
    return 0


def report() -> str:
    """Describe this installation and machine in aligned lines; torch is not imported."""
    facts = {
        "notebook_accel": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        **{name: _version(name) for name in _PACKAGES},
        "accelerators": device_lines(accelerators()),
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "not set"),
        "usable cores": f"{usable_cores()} of {os.cpu_count()}",
        "start methods": _start_methods(),
    }
    width = max(map(len, facts)) + 2
    indented = {name: text.replace("\n", "\n" + " " * width) for name, text in facts.items()}
    return "\n".join(f"{name:<{width}}{text}" for name, text in indented.items())


def device_lines(devices: Sequence[Device]) -> str:
    """Write one line for each device: number, name and memory where it is known."""
    return "\n".join(map(_device_line, devices)) or "none"


def _device_line(device: Device) -> str:
    number = f"{device.kind}:{device.index}" if device.kind == "cuda" else device.kind
    if not device.total_bytes:
        return f"{number} {device.name}"
    free_gb, total_gb = device.free_bytes / 1e9, device.total_bytes / 1e9
    return f"{number} {device.name}, {free_gb:.1f} of {total_gb:.1f} GB free"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _start_methods() -> str:
    if sys.platform == "linux":
        return "fork (while nothing in the kernel opened an accelerator), forkserver, spawn, inline"
    return "spawn, inline"

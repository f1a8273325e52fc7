"""``notebook-accel env``: what a bug report needs, ready to be pasted. torch is not imported."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
from collections.abc import Sequence
from typing import Any

import pynvml

from notebook_accel import __version__
from notebook_accel.config import show, store
from notebook_accel.config.installed import version_of
from notebook_accel.config.resolve import resolve
from notebook_accel.errors import ConfigError
from notebook_accel.launch import doctor
from notebook_accel.launch.devices import Device, accelerators, usable_cores

_PACKAGES = (
    "torch", "numpy", "ipykernel", "ipython", "ipywidgets", "anywidget", "jupyterlab", "notebook",
    "multiprocess", "cloudpickle", "matplotlib", "safetensors", "accelerate", "transformers",
    "deepspeed", "torch-xla", "nvidia-nccl-cu12", "nvidia-nccl-cu13",
)  # fmt: skip
_ALWAYS = ("torch", "ipykernel", "ipywidgets")  # their absence is a fact too
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MASTER_ADDR", "WORLD_SIZE")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument("--config_file", metavar="PATH", help="settings to show (default: yours)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print the report."""
    found = facts(options.config_file)
    print(json.dumps(found, indent=2) if options.json else report(found))
    return 0


def facts(config_file: str | None = None) -> dict[str, Any]:
    """Collect versions, devices, settings and findings as plain data."""
    devices = accelerators()
    env = dict(os.environ)
    notable = [
        finding
        for finding in (
            *doctor.opened(),
            *doctor.accelerators(devices, env),
            *doctor.leftovers(env),
            *doctor.shared_memory(),
            *doctor.limits(),
            *doctor.ports(),
        )
        if finding.level != doctor.GOOD
    ]
    return {
        "notebook_accel": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        "host": _host(),
        **_versions(),
        "GPU driver": _driver(),
        "accelerators": device_lines(devices),
        **{name: env[name] for name in _VARIABLES if name in env},
        "usable cores": f"{usable_cores()} of {os.cpu_count()}",
        "start methods": _start_methods(),
        **_settings(config_file),
        "findings": [dict(vars(finding)) for finding in notable],
    }


def report(found: dict[str, Any]) -> str:
    """Write the facts in aligned lines, findings below them."""
    rows = {name: text for name, text in found.items() if isinstance(text, str)}
    width = max(map(len, rows)) + 2
    lines = [
        f"{name:<{width}}" + text.replace("\n", "\n" + " " * width) for name, text in rows.items()
    ]
    findings = [str(doctor.Finding(**one)) for one in found["findings"]]
    return "\n".join([*lines, "", *findings] if findings else lines)


def device_lines(devices: Sequence[Device]) -> str:
    """Write one line for each device: number, name and memory where it is known."""
    return "\n".join(map(_device_line, devices)) or "none"


def _device_line(device: Device) -> str:
    number = f"{device.kind}:{device.index}" if device.kind == "cuda" else device.kind
    if not device.total_bytes:
        return f"{number} {device.name}"
    free_gb, total_gb = device.free_bytes / 1e9, device.total_bytes / 1e9
    return f"{number} {device.name}, {free_gb:.1f} of {total_gb:.1f} GB free"


def _versions() -> dict[str, str]:
    found = {name: version_of(name) for name in _PACKAGES}
    return {name: text for name, text in found.items() if text or name in _ALWAYS} | {
        name: "not installed" for name in _ALWAYS if not found[name]
    }


def _driver() -> str:
    """Ask the driver for its version; like counting GPUs this opens none of them."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return "none"
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError as error:
        return f"does not tell: {error}"
    finally:
        pynvml.nvmlShutdown()


def _host() -> str:
    """Name the place: a terminal, or the site whose cell runs this command."""
    place = importlib.import_module("notebook_accel.ui.place").place()
    return f"{place.host}, which shows {place.surface}"


def _start_methods() -> str:
    if sys.platform == "linux":
        return (
            "fork (while nothing in the kernel opened an accelerator),\nforkserver, spawn, inline"
        )
    return "spawn, inline"


def _settings(config_file: str | None) -> dict[str, str]:
    path = store.named_or_default(config_file)
    if path is None:
        return {"settings": "no configuration file"}
    try:
        lines = show.lines(resolve({}, {}, store.read(path)))
    except ConfigError as error:
        lines = [str(error)]
    return {"settings": "\n".join([str(path), *lines]).replace(f"file {path}, line", "line")}

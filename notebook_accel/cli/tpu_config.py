"""``notebook-accel tpu-config``: Accelerate's command for TPU pods, answered plainly."""

from __future__ import annotations

import argparse

from notebook_accel.errors import NotHere

_OPTIONS = ("config_file", "tpu_name", "tpu_zone", "command_file", "command", "accelerate_version")
_SWITCHES = ("use_alpha", "install_accelerate", "debug")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare Accelerate's options, so that a known command line gets the answer."""
    for name in _OPTIONS:
        nargs = "+" if name == "command" else None
        action = "append" if name == "command" else "store"
        parser.add_argument(
            f"--{name}", metavar="VALUE", nargs=nargs, action=action, help="as in Accelerate"
        )
    for name in _SWITCHES:
        parser.add_argument(f"--{name}", action="store_true", help="as in Accelerate")


def run(options: argparse.Namespace) -> int:
    """Say that there are no TPU pods yet, and what does the same.

    Errors: NotHere.
    """
    pod = options.tpu_name or "POD"
    zone = options.tpu_zone or "ZONE"
    raise NotHere(
        "tpu-config starts commands on the hosts of a TPU pod, and TPUs are not here yet",
        "training on TPUs needs the XLA engine, which this version does not have",
        f"run commands on its hosts by gcloud itself: gcloud compute tpus tpu-vm ssh {pod} "
        f"--zone {zone} --worker all --command 'COMMAND'",
    )

"""``notebook-accel demo``: train a small classifier here, on two processes, and watch it."""

from __future__ import annotations

import argparse
import importlib

from notebook_accel.cli.child import call
from notebook_accel.cli.parsing import count

WANTED_ACCURACY = 0.9
_TRAINED = "notebook_accel.runtime.demo"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument("--num_processes", type=count, default=2, help="ranks (default: 2)")
    parser.add_argument("--cpu", action="store_true", help="on the CPU, whatever is here")


def run(options: argparse.Namespace) -> int:
    """Train in a child, and print how well."""
    told = call(
        "notebook_accel.cli.demo:train", num_processes=options.num_processes, on_cpu=options.cpu
    )
    rows = {
        "accuracy": f"{told['accuracy']:.3f} on {told['seen']} digits it never saw",
        "loss": f"{told['losses'][0]:.3f} -> {told['losses'][-1]:.3f} in "
        f"{len(told['losses'])} steps",
        "took": f"{told['took_s']:.1f} s on {told['devices']}",
    }
    print("\n" + "\n".join(f"{name:<10}{text}" for name, text in rows.items()))
    print("\nthe same in a notebook: notebook_launcher(main, num_processes=2); in a terminal:")
    print("notebook-accel launch --num_processes 2 your_script.py")
    return 0 if told["accuracy"] >= WANTED_ACCURACY else 1


def train(num_processes: int, on_cpu: bool) -> dict[str, object]:
    """Launch the training from this process, as a cell would; give what came of it."""
    from notebook_accel.launch.launcher import notebook_launcher

    print("Drawing 10,000 digits and learning to read them.")
    main = importlib.import_module(_TRAINED).main
    device = "cpu" if on_cpu else "auto-or-cpu"
    result = notebook_launcher(main, num_processes=num_processes, device=device)
    return {
        **result[0],
        "losses": list(result.history["loss"]),
        "took_s": result.duration_s,
        "devices": result.devices,
    }

"""Work that needs torch, done in a process of its own: the command line stays light.

``call`` runs a function by its dotted name and gives back what it returned, as plain data. What
it prints goes where this process prints; an ``Explained`` error arrives as itself.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any

from notebook_accel import errors
from notebook_accel.errors import Explained, LaunchError
from notebook_accel.launch.scripts.tie import tied


def call(name: str, /, **arguments: Any) -> Any:
    """Call the function ``name`` ("package.module:function") with plain data in a fresh process.

    Errors: the function's own, if it is one of ours; LaunchError when the process died.
    """
    with tempfile.TemporaryDirectory(prefix="notebook_accel-") as folder:
        file = os.path.join(folder, "answer.json")
        process = subprocess.Popen(
            tied([sys.executable, "-m", __name__, name, file, json.dumps(arguments)]),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        try:
            status = process.wait()
        except BaseException:  # an interrupt reached the child too: let it end first
            _end(process)
            raise
        if not os.path.exists(file):
            raise _died(name, status)
        with open(file, encoding="utf-8") as opened:
            said = json.load(opened)
    if "error" in said:
        kind = getattr(errors, said["kind"], LaunchError)
        raise kind(*said["error"])
    return said["value"]


def answer(name: str, file: str, arguments: str) -> None:
    """Be the process that ``call`` started; an interrupt ends it without a word, as its parent."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    module, _, function = name.partition(":")
    try:
        value = getattr(importlib.import_module(module), function)(**json.loads(arguments))
        said = {"value": value}
    except Explained as error:
        said = {"error": [error.what, error.why, error.fix], "kind": type(error).__name__}
    except KeyboardInterrupt:
        sys.exit(130)
    with open(file, "w", encoding="utf-8") as opened:
        json.dump(said, opened)


def _end(process: subprocess.Popen[Any], grace_s: float = 5.0) -> None:
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _died(name: str, status: int) -> LaunchError:
    how = f"exit code {status}" if status >= 0 else f"signal {-status}"
    return LaunchError(
        f"the process that worked for this command ended by {how}",
        f"it ran {name.partition(':')[2]} of {name.partition(':')[0]}; its own words stand above",
        "run it again; if memory ran out, with less",
    )


if __name__ == "__main__":
    answer(*sys.argv[1:])

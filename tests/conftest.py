"""The leak police: a test that leaves something behind fails, whatever it asserted.

Watched: environment variables, working directory, signal handlers, threads, child processes. What
is ending by itself gets a few seconds. Fixtures of a module or session may keep a process; they
start before this fixture looks and end after it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

# A developer's own configuration file changes no test; those of files set the variable themselves.
os.environ["NOTEBOOK_ACCEL_CONFIG"] = "off"
GRACE_S = 5.0
# One idle forkserver may wait for the next launch, and the nursery for the next ranks; both end
# with this process.
FORKSERVER = "notebook_accel.launch.forkserver"
NURSERY = "tests/support/nursery.py"
# pytest writes the first; importing a library that sets a variable once is not a leak.
OWN_VARIABLES = {"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR"}
# tqdm keeps one daemon thread for all bars from the first bar on.
OWN_THREADS = {"TMonitor"}
# pytest-timeout's alarm, disarmed early when a test fails; DataLoader's watch over its workers,
# which torch installs once for good.
OWN_SIGNALS = {"SIGALRM", "SIGCHLD"}

# Runs of tests, of their kernels and scripts are no runs of the person's.
os.environ["NOTEBOOK_ACCEL_RUNS"] = tempfile.mkdtemp(prefix="runs-of-tests-")


def pytest_sessionfinish() -> None:
    shutil.rmtree(os.environ["NOTEBOOK_ACCEL_RUNS"], ignore_errors=True)


@pytest.fixture(autouse=True)
def leave_nothing_behind() -> Iterator[None]:
    env, cwd, handlers = environment(), os.getcwd(), signal_handlers()
    threads, children = set(threading.enumerate()), set(child_processes())
    yield
    leaks = [
        *differences("environment variable", env, environment()),
        *differences("signal handler of", handlers, signal_handlers()),
        *([f"the working directory is now {os.getcwd()}"] if os.getcwd() != cwd else []),
        *left_over("thread", lambda: set(our_threads()) - threads),
        *left_over("process", lambda: set(child_processes()) - children),
    ]
    for process in set(child_processes()) - children:  # so that later tests start clean
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended by itself meanwhile
            process.kill()
            process.wait(GRACE_S)
    os.chdir(cwd)
    assert not leaks, "this test left behind:\n" + "\n".join(leaks)


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}


def signal_handlers() -> dict[str, Any]:
    watched = [number for number in signal.Signals if number.name not in OWN_SIGNALS]
    return {number.name: signal.getsignal(number) for number in watched}


def our_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if type(one).__name__ not in OWN_THREADS]


def child_processes() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [one for one in children if not is_forkserver(one) and not is_browser(one)]


def is_browser(process: psutil.Process) -> bool:
    """Tell a process of the browser, which tests/browser keeps open and which forks as it likes."""
    try:
        return process.name().startswith("chrom")
    except psutil.Error:
        return False


def is_forkserver(process: psutil.Process) -> bool:
    """Tell a server from the workers that it forks: they look like it, but it is their parent."""
    try:
        parent = process.parent()
        return serves(process) and not (parent and serves(parent))
    except psutil.Error:  # gone or a zombie: not an idle server
        return False


def serves(process: psutil.Process) -> bool:
    return any(FORKSERVER in word or NURSERY in word for word in process.cmdline())


def differences(what: str, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    names = sorted(name for name in before | after if before.get(name) != after.get(name))
    return [f"{what} {name}: {before.get(name)!r} -> {after.get(name)!r}" for name in names]


def left_over(what: str, look: Callable[[], set[Any]]) -> list[str]:
    deadline = time.monotonic() + GRACE_S
    while look() and time.monotonic() < deadline:
        time.sleep(0.02)
    return [f"{what} {one}" for one in look()]

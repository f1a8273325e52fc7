"""After a launch, whatever its end, the kernel is exactly as it was before."""

from __future__ import annotations

import pytest

from tests.kernel.cells import go, launch, start_meeting

SNAPSHOT = """
import gc, multiprocessing, random, warnings
def snapshot():
    gc.collect()
    fds = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
            if "eventfd" not in target:  # zmq's, one for each thread that has printed
                fds[name] = target
        except OSError:
            pass  # the listing's own
    return {
        "environment": dict(os.environ),
        "handlers": {s.name: repr(signal.getsignal(s)) for s in signal.valid_signals()
                     if isinstance(s, signal.Signals)},
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "threads": sorted(t.name for t in threading.enumerate()),
        "torch threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "open files": fds,
        "cwd": os.getcwd(),
        "path": list(sys.path),
        "streams": (id(sys.stdout), id(sys.stderr), id(sys.stdin)),
        "input": repr(__builtins__.input),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "switch interval": sys.getswitchinterval(),
        "frozen": gc.get_freeze_count(),
        "gc": gc.isenabled(),
        "torch seed": torch.initial_seed(),
        "torch state": torch.get_rng_state().sum().item(),
        "random": hash(random.getstate()),
        "filters": len(warnings.filters),
        "in a worker": None if "notebook_accel.events.context" not in sys.modules
                       else sys.modules["notebook_accel.events.context"].current(),
    }
def differences(before, after):
    found = []
    for key, old in before.items():
        new = after[key]
        if isinstance(old, dict):
            names = sorted(name for name in old | new if old.get(name) != new.get(name))
            found += [(key, name, old.get(name), new.get(name)) for name in names]
        elif old != new:
            found.append((key, old, new))
    return found
def fail():
    raise ValueError("boom")
signal.signal(signal.SIGTERM, lambda number, frame: None)
signal.signal(signal.SIGQUIT, signal.SIG_IGN)
torch.set_num_threads(2)
"""


@pytest.fixture(scope="module")
def watched(kernel):
    reply = kernel.run(SNAPSHOT)
    assert not reply.error, reply.traceback
    for method in ("fork", "forkserver"):  # imports and the forkserver come once
        kernel.run(launch("tens", method))
    return kernel


def differences(kernel):
    return kernel.run("print(differences(before, snapshot()))").out.strip()


@pytest.mark.parametrize(
    ("function", "method"),
    [
        ("tens", "fork"),
        ("fail", "fork"),
        ("tens", "forkserver"),
        ("fail", "forkserver"),
        ("fail", "spawn"),
    ],
)
def test_a_launch_leaves_the_kernel_as_it_was(watched, function, method):
    watched.run("before = snapshot()")
    reply = watched.run(launch(function, method))
    assert reply.error == {"tens": "", "fail": "ValueError"}[function], reply.traceback
    assert differences(watched) == "[]"


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_an_interrupted_launch_leaves_the_kernel_as_it_was(watched, tmp_path, method):
    watched.run("before = snapshot()")
    cell, _ = start_meeting(watched, "time.sleep(60)", tmp_path, method)
    go(tmp_path)
    watched.interrupt()
    assert watched.finish(cell, timeout_s=20).error == "RunInterrupted"
    assert differences(watched) == "[]"


def test_a_launch_that_cannot_start_leaves_the_kernel_as_it_was(watched):
    watched.run("before = snapshot(); lock = threading.Lock()")
    reply = watched.run(
        "notebook_launcher(lambda: lock, num_processes=2, start_method='forkserver')"
    )
    assert reply.error == "LaunchError"
    assert "the global variable lock (lock, " in reply.traceback
    assert "make lock inside the function" in reply.traceback
    assert differences(watched) == "[]"


def test_a_run_in_the_background_leaves_the_kernel_as_it_was(watched):
    watched.run("before = snapshot()")
    reply = watched.run(
        "run = notebook_launcher(tens, num_processes=2, block=False); print(run.wait(30).values)"
    )
    assert "[10, 10]" in reply.out, reply.messages
    assert differences(watched) == "[]"


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_hundred_launches_that_end_in_every_way_leave_the_kernel_as_it_was(watched, tmp_path):
    watched.run(
        "before = snapshot()\ndef leave():\n    connect(); os._exit(3)\n"
        "def sleep():\n    connect(); time.sleep(60)\n"
        "def ended(**more):\n"
        "    run = notebook_launcher(sleep, num_processes=2, block=False, **more)\n"
        "    time.sleep(time.time() % 1); run.stop(); run.kill()\n"
        "    try:\n        run.wait(30)\n    except RunInterrupted:\n        return True"
    )
    for number in range(25):
        method = ("fork", "forkserver")[number % 2]
        for function, error in (("tens", ""), ("fail", "ValueError"), ("leave", "WorkerDied")):
            assert watched.run(launch(function, method)).error == error
        assert watched.run(f"assert ended(start_method={method!r})").error == ""
    assert differences(watched) == "[]"

"""What a function can do to its worker, and what the cell says then."""

from __future__ import annotations

import os
import signal

import pytest

from tests.kernel.cells import check_aftermath, go, launch, said, start_meeting, wait_for_file

both_methods = pytest.mark.parametrize("method", ["fork", "forkserver"])


def run(kernel, code, method, timeout_s=60):
    kernel.run(code)
    return kernel.run(launch("train", method, "; print(run.values)"), timeout_s)


@both_methods
def test_an_endless_recursion_is_shown_by_its_first_and_last_calls(kernel, method):
    reply = run(kernel, "def train():\n    return train()", method)
    assert reply.error == "RecursionError"
    assert " more calls ..." in reply.traceback
    assert len(reply.traceback.splitlines()) < 120


FINE = {
    "a daemon thread prints for ever": (
        "def train():\n    def tick():\n        while True:\n            print('tick')\n"
        "    threading.Thread(target=tick, daemon=True).start(); return 1"
    ),
    "descriptors 1 and 2 are closed": "def train():\n    os.close(1); os.close(2); return 1",
    "stdout is None": "def train():\n    sys.stdout = None; return 1",
    "stdout is closed": "def train():\n    sys.stdout.close(); return 1",
    "a child of fork returns too": "def train():\n    return 1 if os.fork() else 2",
    "an event loop": "import asyncio\ndef train():\n    return asyncio.run(asyncio.sleep(0, 1))",
    "pools that are ended at once": (
        "import multiprocessing as mp\ndef one(x):\n    return 1\ndef train():\n"
        "    for _ in range(15):  # a pool is ended while its last process is being born\n"
        "        with mp.get_context('fork').Pool(2) as pool:\n"
        "            value = pool.map(one, [0])[0]\n    return value"
    ),
    "a loader left in the middle of an iteration": (
        "def train():\n    global kept\n"
        "    kept = iter(DataLoader(Numbers(), num_workers=2, persistent_workers=True))\n"
        "    next(kept); return 1"
    ),
    "a session of its own": (
        "def train():\n    try:\n        os.setsid()\n    except PermissionError:\n        return 1"
    ),
    "a folder that is gone": (
        "import tempfile, shutil\ndef train():\n    folder = tempfile.mkdtemp()\n"
        "    os.chdir(folder); shutil.rmtree(folder); return 1"
    ),
    "a value that holds itself": (
        "def train():\n    value = []; value.append(value); return len(value)"
    ),
}


@both_methods
@pytest.mark.parametrize("code", FINE.values(), ids=FINE.keys())
def test_a_result_comes_back_in_spite_of(kernel, method, code):
    reply = run(kernel, code, method)
    assert "[1, 1]" in reply.out, reply.messages


FAILURES = {
    "print without descriptor 1": ("os.close(1); print('x')", "OSError"),
    "stderr is closed": ("sys.stderr.close(); raise ValueError('x')", "ValueError"),
    "stdout is None": ("sys.stdout = None; raise ValueError('x')", "ValueError"),
    "their own interrupt": ("raise KeyboardInterrupt('mine')", "KeyboardInterrupt"),
    "exit with a text": ("sys.exit('a text')", "WorkerDied"),
    "a missing file": ("open('missing')", "FileNotFoundError"),
    "an error inside torch": ("nn.Linear(2, 2)(torch.ones(3, 3))", "RuntimeError"),
}


@both_methods
@pytest.mark.parametrize(("body", "error"), FAILURES.values(), ids=FAILURES.keys())
def test_an_exception_comes_back_in_spite_of(kernel, method, body, error):
    reply = run(kernel, f"def train():\n    {body}", method)
    number = kernel.execution_count - 1
    assert reply.error == error
    assert f"Cell In[{number}], line 2" in reply.traceback
    assert "_modified_open" not in reply.traceback


@both_methods
def test_a_worker_without_its_pipes_is_reported_as_gone(kernel, method):
    reply = run(kernel, "def train():\n    os.closerange(0, 1000); return 1", method)
    assert reply.error == "WorkerDied"
    # rank 0 may sooner be aborted by the store it serves, whose sockets are gone as well
    left = "left with exit code 1, before its first step, without returning"
    assert left in reply.traceback or "was killed by SIGABRT" in reply.traceback


@both_methods
def test_a_value_that_the_kernel_cannot_read_is_reported(kernel, method):
    reply = run(
        kernel,
        "class Odd:\n    def __init__(self):\n        self.x = 1\n"
        "    def __setstate__(self, state):\n        if 'RANK' not in os.environ:\n"
        "            raise OSError('not here')\ndef train():\n    return Odd()",
        method,
    )
    assert reply.error == "LaunchError"
    assert "what rank 0 returned could not be read here: OSError('not here')" in reply.traceback


@pytest.mark.slow
def test_an_exit_function_that_does_not_end_is_cut_off_with_a_note(kernel):
    reply = run(
        kernel, "import atexit\ndef train():\n    atexit.register(time.sleep, 60); return 1", "fork"
    )
    assert "note: rank 0 was ended: its exit functions took 10 s" in reply.err
    assert "[1, 1]" in reply.out


def test_a_rank_told_to_stop_before_it_began_says_nothing(kernel):
    """A rank fails while the next one has not even left the fork."""
    kernel.run(
        "forks = []\ndef dawdle(forks=forks, sleep=time.sleep):\n"
        "    if len(forks) == 2:\n        sleep(1)\n"
        "os.register_at_fork(before=functools.partial(forks.append, 1), after_in_child=dawdle)\n"
        "def train():\n    raise ValueError('boom')"
    )
    reply = kernel.run("forks.clear()\n" + launch("train", "fork"))
    kernel.run("forks += [1, 1, 1]")  # it stays registered
    assert "ValueError in rank 0" in reply.traceback
    assert reply.err == ""


@both_methods
def test_a_stopped_rank_does_not_hold_up_an_interrupt(kernel, tmp_path, method):
    cell, pids = start_meeting(kernel, "time.sleep(60)", tmp_path, method)
    rank = int(wait_for_file(tmp_path / "pids1").split()[0])
    os.kill(rank, signal.SIGSTOP)
    go(tmp_path)
    kernel.interrupt()
    reply = kernel.finish(cell, timeout_s=20)
    assert reply.error == "RunInterrupted"
    assert "rank 1 had to be killed" in reply.traceback
    check_aftermath(kernel, pids, method)


def test_a_flood_of_output_neither_stalls_nor_delays_the_failure(kernel):
    reply = run(
        kernel,
        "def train():\n    if rank() == 1:\n        raise ValueError('boom')\n"
        "    while True:\n        print('flood ' * 100)",
        "fork",
    )
    assert "ValueError in rank 1" in reply.traceback


def test_sixteen_ranks_on_few_cores_finish(kernel):
    reply = kernel.run(launch("tens", "fork", "; print(set(run))", num_processes=16))
    assert "{1200}" in reply.out, said(reply)


def test_a_hundred_thousand_arguments_arrive(kernel):
    kernel.run("def train(*numbers):\n    return sum(numbers)")
    for method in ("fork", "forkserver"):
        reply = kernel.run(
            "run = notebook_launcher(train, list(range(100_000)), num_processes=2, "
            f"start_method={method!r}); print(run.values)"
        )
        assert "[4999950000, 4999950000]" in reply.out


def test_a_first_launch_in_a_fresh_kernel_can_be_interrupted_while_it_imports(own_kernel):
    for method in ("fork", "forkserver"):
        cell = own_kernel.start(launch("tens", method))
        own_kernel.wait_for_output(cell, "Launching on")
        own_kernel.interrupt()
        reply = own_kernel.finish(cell, timeout_s=30)
        assert reply.error == "RunInterrupted", said(reply)
    check_aftermath(own_kernel, [])
    check_aftermath(own_kernel, [], "forkserver")

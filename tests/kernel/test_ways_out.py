"""Every way out of a run, each with a loader's worker as grandchild in every rank.

After each: nothing is left by pid, the kernel or its successor answers, the next launch works.
"""

from __future__ import annotations

import pytest

from tests.kernel.cells import PRELUDE, check_aftermath, go, launch, said, start_meeting
from tests.support.kernels import forkservers, wait_gone

METHODS = ["fork", "forkserver"]
both_methods = pytest.mark.parametrize("method", METHODS)


def fail(kernel, body, folder, method, num_ranks=2):
    """Run ``body`` after the meeting; give the reply and check what is left."""
    cell, pids = start_meeting(kernel, body, folder, method, num_ranks)
    go(folder)
    reply = kernel.finish(cell, timeout_s=20)
    assert wait_gone(pids) == set()
    assert "connection closed" not in said(reply).lower()
    check_aftermath(kernel, pids, method)
    return reply


@both_methods
def test_an_exception_comes_to_the_cell_as_itself_with_its_line(kernel, tmp_path, method):
    body = "connect()\nif rank() == 1:\n    raise ValueError('boom')\ndist.barrier()"
    reply = fail(kernel, body, tmp_path, method)
    number = kernel.execution_count - 2
    assert reply.error == "ValueError"
    assert "ValueError in rank 1" in reply.traceback
    assert f"Cell In[{number}], line 5, in train" in reply.traceback
    assert "---->   5         raise ValueError('boom')" in reply.traceback
    assert reply.traceback.rstrip().endswith("ValueError: boom")
    assert "notebook_accel/launch" not in reply.traceback


@both_methods
def test_the_same_failure_of_all_ranks_is_shown_once(kernel, tmp_path, method):
    body = "raise ValueError(f'boom on {rank()}')"
    reply = fail(kernel, body, tmp_path, method, num_ranks=3)
    assert reply.error == "ValueError"
    assert "ValueError in ranks 0-2, the same on each" in reply.traceback
    assert said(reply).count("raise ValueError") == 1


@both_methods
def test_sys_exit_is_named_with_its_code_and_line(kernel, tmp_path, method):
    body = "connect()\nif rank() == 1:\n    sys.exit(3)\ndist.barrier()"
    reply = fail(kernel, body, tmp_path, method)
    number = kernel.execution_count - 2
    assert reply.error == "WorkerDied"
    assert f"rank 1 called sys.exit(3) at Cell In[{number}], line 5" in reply.traceback


@both_methods
@pytest.mark.parametrize(
    ("last_act", "name"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("ctypes.string_at(0)", "SIGSEGV"),
        ("os.abort()", "SIGABRT"),
    ],
)
def test_a_rank_killed_by_a_signal_is_named_with_it(kernel, tmp_path, method, last_act, name):
    body = f"connect()\nif rank() == 1:\n    {last_act}\ndist.barrier()"
    reply = fail(kernel, body, tmp_path, method)
    assert reply.error == "WorkerDied"
    assert f"rank 1 was killed by {name}" in reply.traceback
    if name == "SIGSEGV":
        assert "Fatal Python error: Segmentation fault" in reply.err, "its Python stack is shown"


@both_methods
def test_os_exit_is_named_with_its_code(kernel, tmp_path, method):
    body = "connect()\nif rank() == 1:\n    os._exit(3)\ndist.barrier()"
    reply = fail(kernel, body, tmp_path, method)
    assert reply.error == "WorkerDied"
    assert "rank 1 left with exit code 3" in reply.traceback


@both_methods
def test_a_rank_that_ignores_sigterm_is_killed_after_a_grace(kernel, tmp_path, method):
    body = (
        "if rank() == 1:\n    raise ValueError('boom')\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True:\n    time.sleep(1)"
    )
    reply = fail(kernel, body, tmp_path, method)
    assert "ValueError in rank 1" in reply.traceback


WAITS = {
    "in a loop over its loader": "for batch in batches:\n    time.sleep(0.01)\ntime.sleep(60)",
    "asleep": "time.sleep(60)",
    "in a collective": "connect()\nif rank() == 1:\n    time.sleep(60)\ndist.barrier()",
    "in pure Python": "while True:\n    pass",
    "in a long matrix product": "x = torch.ones(1500, 1500)\nwhile True:\n    x = x @ x / 1500",
    "blocking every exception": (
        "while True:\n    try:\n        time.sleep(60)\n    except BaseException:\n        pass"
    ),
}


@both_methods
@pytest.mark.parametrize("body", WAITS.values(), ids=WAITS.keys())
def test_one_interrupt_ends_a_run_whatever_it_is_doing(kernel, tmp_path, method, body):
    cell, pids = start_meeting(kernel, body, tmp_path, method)
    go(tmp_path)
    kernel.interrupt()
    reply = kernel.finish(cell, timeout_s=20)
    assert reply.error == "RunInterrupted"
    assert "connection closed" not in said(reply).lower()
    assert "KeyboardInterrupt" not in reply.err, "loader workers stay quiet"
    check_aftermath(kernel, pids, method)


@both_methods
def test_two_interrupts_kill_a_run_that_does_not_stop(kernel, tmp_path, method):
    body = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITS["blocking every exception"]
    cell, pids = start_meeting(kernel, body, tmp_path, method)
    go(tmp_path)
    kernel.interrupt()
    kernel.interrupt()
    reply = kernel.finish(cell, timeout_s=20)
    assert reply.error == "RunInterrupted"
    assert "had to be killed" in reply.traceback
    check_aftermath(kernel, pids, method)


def test_a_cell_that_waits_behind_an_interrupted_one_does_not_run(kernel, tmp_path):
    cell, pids = start_meeting(kernel, "time.sleep(60)", tmp_path, stop_on_error=True)
    queued = kernel.start("print('the queued cell ran')")
    kernel.interrupt()
    assert kernel.finish(cell, timeout_s=20).error == "RunInterrupted"
    assert "the queued cell ran" not in kernel.finish(queued, timeout_s=20).out
    assert wait_gone(pids) == set()


STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True:\n    time.sleep(1)"


@both_methods
@pytest.mark.parametrize("ends", [["restart", "kill"], ["shutdown"]])
def test_nothing_survives_the_end_of_the_kernel(own_kernel, tmp_path, method, ends):
    kernel = own_kernel
    for end in ends:
        folder = tmp_path / end
        folder.mkdir()
        _, pids = start_meeting(kernel, STUBBORN, folder, method)
        go(folder)
        servers = forkservers(kernel.pid)
        assert bool(servers) == (method == "forkserver")
        getattr(kernel, end)()
        assert wait_gone(pids | servers) == set()
        if end == "restart":
            kernel.run(PRELUDE)
            check_aftermath(kernel, pids, method)


def test_what_led_to_an_exception_is_shown_with_its_line(kernel):
    kernel.run(
        "def train():\n"
        "    try:\n"
        "        {}['size']\n"
        "    except KeyError as missing:\n"
        "        raise ValueError('bad config') from missing"
    )
    reply = kernel.run(launch("train", "fork"))
    shown = reply.traceback
    assert shown.index("{}['size']") < shown.index("which led to:")
    assert shown.index("which led to:") < shown.rindex("raise ValueError('bad config')")
    assert "KeyError: 'size'" in shown

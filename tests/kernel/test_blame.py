"""Who is blamed: the rank that failed for a reason of its own, not those that waited for it."""

from __future__ import annotations

import pytest

from tests.kernel.cells import said

IN_COLLECTIVES = """
def train(wrong, act):
    connect()
    x = torch.ones(4)
    for step in range(1000):
        if rank() == wrong and step == 5:
            act()
        dist.all_reduce(x)
def fail():
    raise KeyError("my own")
def leave():
    os._exit(3)
def train_short(wrong):
    connect()
    if rank() == wrong:
        return "early"
    dist.barrier()
"""


@pytest.fixture(scope="module", autouse=True)
def functions(kernel):
    assert not kernel.run(IN_COLLECTIVES).error


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("times", [5, pytest.param(20, marks=pytest.mark.soak)])
def test_the_rank_that_raised_is_blamed_while_others_sit_in_a_collective(kernel, method, times):
    for attempt in range(times):
        wrong = attempt % 4
        reply = kernel.run(
            f"notebook_launcher(train, ({wrong}, fail), num_processes=4, start_method={method!r})",
            timeout_s=60,
        )
        assert reply.error == "KeyError"
        assert f"KeyError in rank {wrong}" in reply.traceback
        assert "connection closed" not in said(reply).lower()


def test_a_rank_that_left_by_os_exit_is_blamed(kernel):
    for wrong in (0, 1):
        reply = kernel.run(
            f"notebook_launcher(train, ({wrong}, leave), num_processes=2)", timeout_s=60
        )
        assert reply.error == "WorkerDied"
        assert f"rank {wrong} left with exit code 3" in reply.traceback


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("wrong", [0, 1])
def test_a_rank_that_returned_early_is_blamed_within_seconds(kernel, method, wrong):
    reply = kernel.run(
        f"notebook_launcher(train_short, ({wrong},), num_processes=2, start_method={method!r})",
        timeout_s=60,
    )
    assert reply.error == "WorkerDied", reply.messages
    assert f"rank {wrong} returned early" in reply.traceback
    assert f"rank {1 - wrong} waited for it in barrier at Cell In[" in reply.traceback


def test_a_run_that_takes_too_long_says_where_each_rank_was(kernel):
    kernel.run(
        "def wait_in_vain():\n    connect()\n    if rank() == 0:\n        dist.barrier()\n"
        "    time.sleep(60)"
    )
    number = kernel.execution_count
    reply = kernel.run(
        "notebook_launcher(wait_in_vain, num_processes=2, timeout_s=4)", timeout_s=60
    )
    assert reply.error == "RunTimeout"
    assert "the run took longer than timeout_s=4" in reply.traceback
    assert f"rank 0 was at Cell In[{number}], line 4" in reply.traceback
    assert f"rank 1 was at Cell In[{number}], line 5" in reply.traceback


def test_a_run_restarts_after_failures_as_often_as_it_may(kernel, tmp_path):
    kernel.run(
        f"marks = {str(tmp_path)!r}\n"
        "def unsteady(times):\n    connect()\n"
        "    attempt = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "    if attempt < times and rank() == 1:\n        raise OSError(f'attempt {attempt}')\n"
        "    dist.barrier()\n    return attempt"
    )
    reply = kernel.run(
        "print(notebook_launcher(unsteady, (2,), num_processes=2, max_restarts=2).values)"
    )
    assert "note: OSError: attempt 0" in reply.out
    assert "starting all ranks again (2 of 2 restarts)" in reply.out
    assert "[2, 2]" in reply.out
    reply = kernel.run("notebook_launcher(unsteady, (2,), num_processes=2, max_restarts=1)")
    assert reply.error == "OSError"
    assert "OSError: attempt 1" in reply.traceback

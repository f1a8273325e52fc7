"""Launches in all places: two kernels, one after another, threads, the background, nested."""

from __future__ import annotations

import os
import signal

import pytest

from tests.kernel.cells import check_aftermath, go, launch, start_meeting, wait_for_file
from tests.kernel.conftest import prepared
from tests.support.kernels import alive, family, forkservers, wait_gone

both_methods = pytest.mark.parametrize("method", ["fork", "forkserver"])


@pytest.fixture(scope="module")
def another_kernel():
    with prepared() as kernel:
        yield kernel


@both_methods
def test_two_kernels_launch_at_once(kernel, another_kernel, method):
    body = "connect()\nfor step in range(200):\n    dist.barrier()\nprint('done', rank())"
    for one in (kernel, another_kernel):
        one.run("def train():\n" + "\n".join("    " + line for line in body.splitlines()))
    first = kernel.start(launch("train", method, num_processes=2))
    second = another_kernel.start(launch("train", method, num_processes=3))
    assert kernel.finish(first).out.count("done") == 2
    assert another_kernel.finish(second).out.count("done") == 3


def test_launches_follow_each_other_with_other_process_counts_and_methods(kernel):
    ways = [(1, "fork"), (3, "forkserver"), (2, "fork"), (1, "forkserver"), (4, "auto")]
    for num_processes, method in ways:
        reply = kernel.run(
            launch("tens", method, "; print(run.values, len(run))", num_processes=num_processes)
        )
        total = sum(10 * number for number in range(num_processes))
        assert f"{[total] * num_processes} {num_processes}" in reply.out, reply.messages
    assert family(kernel.pid) == forkservers(kernel.pid)


@both_methods
def test_a_launch_from_a_thread_works(kernel, method):
    reply = kernel.run(
        "box = []\ndef work():\n"
        f"    {launch('tens', method)}\n    box.append(run.values)\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join(30); print(box)"
    )
    assert "[[10, 10]]" in reply.out, reply.messages


@both_methods
def test_two_launches_at_once_in_one_kernel_from_threads(kernel, method):
    reply = kernel.run(
        "box = []\ndef work(num_processes):\n"
        f"    run = notebook_launcher(tens, num_processes=num_processes, start_method={method!r})\n"
        "    box.append(run.values)\n"
        "threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join(30)\n"
        "print(sorted(box))"
    )
    assert "[[0], [10, 10], [30, 30, 30]]" in reply.out, reply.messages


def test_a_launch_from_an_executors_thread_ends_quietly(kernel):
    reply = kernel.run(
        "import asyncio\nrun = await asyncio.to_thread(notebook_launcher, tens, (), 2)\n"
        "print(run.values)"
    )
    assert "[10, 10]" in reply.out, reply.messages
    assert reply.err == ""


# ── in the background ─────────────────────────────────────────────────────────────────────────


@both_methods
def test_a_run_in_the_background_prints_under_its_own_cell_and_is_waited_for(
    kernel, tmp_path, method
):
    kernel.run(
        "def train():\n    meet(folder)\n    print('from worker', rank())\n    return tens()\n"
        f"folder = {str(tmp_path)!r}"
    )
    cell = kernel.start(
        f"handle = notebook_launcher(train, num_processes=2, start_method={method!r}, block=False)"
    )
    started = kernel.finish(cell)
    assert "from worker" not in started.out, "the cell has returned while the run goes on"
    wait_for_file(tmp_path / "pids1")
    assert "Run(running) False" in kernel.run("print(handle, handle.done)").out
    go(tmp_path)
    kernel.wait_for_output(cell, "[0] from worker 0", "[1] from worker 1")
    reply = kernel.run("print(handle.wait(20).values, handle.done)")
    assert reply.out == "[10, 10] True\n", "its output belongs to the other cell"


def test_a_run_in_the_background_is_awaited_in_a_cell(kernel):
    kernel.run("handle = notebook_launcher(tens, num_processes=2, block=False)")
    assert "[10, 10]" in kernel.run("print((await handle).values)").out


@both_methods
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_run_in_the_background_can_be_ended(kernel, tmp_path, method, how):
    cell, pids = start_meeting(kernel, "time.sleep(60)", tmp_path, method, more=", block=False")
    kernel.finish(cell)
    go(tmp_path)
    reply = kernel.run(f"run.{how}(); run.wait(15)")
    assert reply.error == "RunInterrupted"
    kernel.run("run.stop(); run.kill()")  # too late: nothing happens
    check_aftermath(kernel, pids, method)


def test_an_error_in_the_background_is_raised_by_wait(kernel):
    kernel.run("def train():\n    raise KeyError('boom')")
    number = kernel.execution_count
    kernel.run("handle = notebook_launcher(train, num_processes=2, block=False)")
    for _ in range(2):
        reply = kernel.run("handle.wait(20)")
        assert reply.error == "KeyError"
        assert f"Cell In[{number}], line 2" in reply.traceback
    assert "Run(done: KeyError('boom'))" in kernel.run("print(handle)").out


def test_waiting_with_a_limit_leaves_the_run_alone(kernel, tmp_path):
    cell, _ = start_meeting(kernel, "return 5", tmp_path, more=", block=False")
    kernel.finish(cell)
    reply = kernel.run("run.wait(0.1)")
    assert reply.error == "LaunchError"
    assert "the run is still going after 0.1 s" in reply.traceback
    go(tmp_path)
    assert "[5, 5]" in kernel.run("print(run.wait(20).values)").out


@both_methods
def test_a_run_in_the_background_dies_with_its_kernel(own_kernel, tmp_path, method):
    cell, pids = start_meeting(own_kernel, "time.sleep(60)", tmp_path, method, more=", block=False")
    own_kernel.finish(cell)
    servers = forkservers(own_kernel.pid)
    own_kernel.shutdown()
    assert wait_gone(pids | servers) == set()


# ── what reaches the workers ──────────────────────────────────────────────────────────────────


@both_methods
def test_a_nested_launch_is_refused(kernel, method):
    kernel.run("def train():\n    return notebook_launcher(tens, num_processes=2)")
    reply = kernel.run(launch("train", method))
    assert reply.error == "LaunchError"
    assert "of a run tried to launch another run" in reply.traceback
    assert "a launch starts from the kernel" in reply.traceback


@both_methods
def test_what_a_cell_changes_reaches_the_next_launch(kernel, tmp_path, method):
    kernel.run(launch("tens", method))  # the forkserver, if any, is warm
    (tmp_path / "a").mkdir()
    kernel.run(
        "def look():\n    import fresh\n    return (\n"
        "        os.environ.get('COLOR'), os.environ.get('SIZE'), os.getcwd(), fresh.VALUE,\n"
        "        torch.get_default_dtype(), 'GONE' in os.environ, sys.argv[-1])\n"
        "os.environ['GONE'] = 'yes'"
    )
    for value in (1, 2):
        (tmp_path / "a" / "fresh.py").write_text(f"VALUE = {value}\n")
        kernel.run(
            f"home = os.getcwd(); os.chdir({str(tmp_path)!r}); os.environ['COLOR'] = 'c{value}'\n"
            f"sys.path.insert(0, {str(tmp_path / 'a')!r}); os.environ.pop('GONE', None)\n"
            f"torch.set_default_dtype(torch.float64); sys.argv.append('v{value}')"
        )
        reply = kernel.run(
            "run = notebook_launcher(look, num_processes=2, env={'SIZE': 'big'}, "
            f"start_method={method!r})\n"
            "print(set(run.values), 'SIZE' in os.environ)\n"
            "os.chdir(home); sys.path.pop(0); torch.set_default_dtype(torch.float32)\n"
            "sys.argv.pop(); del os.environ['COLOR']"
        )
        expected = (f"c{value}", "big", str(tmp_path), value)
        text = ", ".join(map(repr, expected))
        assert f"{{({text}, torch.float64, False, 'v{value}')}} False" in reply.out, reply.messages


@both_methods
def test_random_numbers_continue_from_the_kernels_state(kernel, method):
    kernel.run(
        "import random, numpy\ndef draw():\n"
        "    return torch.rand(1).item(), random.random(), float(numpy.random.rand())"
    )
    seed = "torch.manual_seed(3); random.seed(4); numpy.random.seed(5)"
    reply = kernel.run(f"{seed}\n{launch('draw', method)}\n{seed}\nprint(set(run) == {{draw()}})")
    assert "True" in reply.out, reply.messages


@both_methods
def test_a_module_edited_and_reloaded_in_the_kernel_is_the_new_one_in_workers(
    kernel, tmp_path, method
):
    module = f"edited_{method}"
    (tmp_path / f"{module}.py").write_text("def value():\n    return 'first'\n")
    kernel.run(
        f"sys.dont_write_bytecode = True; sys.path.insert(0, {str(tmp_path)!r})\n"
        f"import importlib, {module} as edited\ndef train():\n    return edited.value()"
    )
    assert "['first', 'first']" in kernel.run(launch("train", method, "; print(run.values)")).out
    (tmp_path / f"{module}.py").write_text("def value():\n    return 'second'\n")
    kernel.run("importlib.reload(edited)")
    assert "['second', 'second']" in kernel.run(launch("train", method, "; print(run.values)")).out
    kernel.run("sys.path.pop(0)")


def test_a_kernel_whose_folder_is_gone_is_told_so_where_it_matters(kernel):
    kernel.run(launch("tens", "fork"))  # imports need a folder, too
    kernel.run(
        "import tempfile; home = os.getcwd(); folder = tempfile.mkdtemp()\n"
        "os.chdir(folder); os.rmdir(folder)"
    )
    assert "[10, 10]" in kernel.run(launch("tens", "fork", "; print(run.values)")).out
    reply = kernel.run(launch("tens", "forkserver"))
    kernel.run("os.chdir(home)")
    assert reply.error == "LaunchError"
    assert "the working directory of this kernel no longer exists" in reply.traceback
    assert "os.chdir(...)" in reply.traceback
    assert "[10, 10]" in kernel.run(launch("tens", "forkserver", "; print(run.values)")).out


@both_methods
def test_odd_variables_of_the_kernel_do_not_reach_the_ranks(kernel, method):
    kernel.run(
        "odd = dict(RANK='7', WORLD_SIZE='9', LOCAL_RANK='x', MASTER_ADDR='nowhere.invalid',\n"
        "           MASTER_PORT='1', OMP_NUM_THREADS='4,2')\nos.environ.update(odd)"
    )
    reply = kernel.run(launch("tens", method, "; print(run.values)"))
    kernel.run("for name in odd: del os.environ[name]")
    assert "[10, 10]" in reply.out, reply.messages


# ── the forkserver ────────────────────────────────────────────────────────────────────────────


def test_a_forkserver_killed_while_idle_is_replaced(kernel):
    kernel.run(launch("tens", "forkserver"))
    (server,) = forkservers(kernel.pid)
    kernel.run(f"os.kill({server}, signal.SIGKILL)")
    assert wait_gone({server}) == set()
    reply = kernel.run(launch("tens", "forkserver", "; print(run.values)"))
    assert "[10, 10]" in reply.out, reply.messages


def test_a_forkserver_killed_during_a_run_ends_it_with_a_reason(kernel, tmp_path):
    cell, pids = start_meeting(kernel, "time.sleep(60)", tmp_path, "forkserver")
    (server,) = forkservers(kernel.pid)
    go(tmp_path)
    os.kill(server, signal.SIGKILL)
    reply = kernel.finish(cell, timeout_s=20)
    assert reply.error == "LaunchError"
    assert "the forkserver ended (exit code -9)" in reply.traceback
    assert "run the cell again" in reply.traceback
    check_aftermath(kernel, pids, "forkserver")


def test_shutdown_ends_the_idle_forkserver(kernel):
    kernel.run(launch("tens", "forkserver"))
    servers = forkservers(kernel.pid)
    assert len(servers) == 1
    kernel.run("from notebook_accel import shutdown; shutdown(); shutdown()")
    assert alive(servers) == set()


def test_a_run_survives_the_death_of_its_guard(kernel, tmp_path):
    cell, pids = start_meeting(kernel, "return tens()", tmp_path)
    ranks = {int(wait_for_file(tmp_path / f"pids{n}").split()[i]) for n in (0, 1) for i in (0, 1)}
    (guard,) = pids - ranks
    os.kill(guard, signal.SIGKILL)
    go(tmp_path)
    assert not kernel.finish(cell, timeout_s=20).error
    check_aftermath(kernel, pids)

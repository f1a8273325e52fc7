"""Forking from a kernel that has used its threads, and not forking from one that must not."""

from __future__ import annotations

import os

import pytest

from tests.kernel.cells import PRELUDE, launch
from tests.support.kernels import Kernel

USED = """
import sklearn.cluster, sklearn.ensemble  # before torch: its own OpenMP library is the first
import numpy as np
rows = np.random.default_rng(0).normal(size=(1500, 8))
sklearn.cluster.KMeans(4, n_init=2).fit(rows)
sklearn.ensemble.HistGradientBoostingRegressor(max_iter=5).fit(rows, rows[:, 0])
"""
BUSY = """
torch.set_num_threads(2)
net = nn.Linear(300, 300)
def use_threads():
    x = torch.randn(300, 300, requires_grad=True)
    (net(x) @ x).square().mean().backward()
def train():
    connect()
    for _ in range(3):
        use_threads()
    labels = sklearn.cluster.KMeans(4, n_init=1).fit(rows).labels_
    gradient = net.weight.grad
    dist.all_reduce(gradient)
    return torch.get_num_threads(), len(labels), bool(gradient.isfinite().all())
"""


@pytest.fixture(scope="module")
def used_kernel():
    """A kernel for the tests of this module; what they do to it, nobody undoes."""
    env = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "2")
    env["OMP_WAIT_POLICY"] = "PASSIVE"  # waiting threads sleep: there are more of them than cores
    with Kernel(env) as kernel:
        for code in (USED, PRELUDE, BUSY):
            reply = kernel.run(code)
            assert not reply.error, reply.traceback
        yield kernel


@pytest.mark.parametrize("times", [5, pytest.param(100, marks=pytest.mark.soak)])
@pytest.mark.timeout(600)
def test_a_kernel_that_used_two_openmp_libraries_forks_workers_of_two_threads(used_kernel, times):
    libraries = used_kernel.run(
        "paths = {line.split()[-1] for line in open('/proc/self/maps') if 'omp' in line}\n"
        "print(sum(('libgomp' in p) or ('libomp' in p) or ('libiomp' in p) for p in paths))"
    )
    assert int(libraries.out) >= 2, "this test needs two OpenMP libraries in one process"
    for _ in range(times):
        reply = used_kernel.run(
            "use_threads(); sklearn.cluster.KMeans(4, n_init=1).fit(rows)\n"
            + launch("train", "fork", "; print(run.values)"),
            timeout_s=30,
        )
        assert "[(2, 1500, True), (2, 1500, True)]" in reply.out, reply.messages
    assert used_kernel.run("use_threads(); print('fine')").out == "fine\n"


def test_a_kernel_that_opened_cuda_launches_fresh_workers_and_says_why(used_kernel):
    reply = used_kernel.run(
        "as_it_was = torch.cuda._is_in_bad_fork\n"
        "torch.cuda.is_initialized = torch.cuda._is_in_bad_fork = lambda: True\n"
        + launch("tens", "auto", "; print(run.values)")
    )
    assert "by forkserver (CUDA is open in this kernel)" in reply.out
    assert "[10, 10]" in reply.out, reply.messages
    reply = used_kernel.run("torch.cuda.is_initialized = lambda: False\n" + launch("tens"))
    assert "by forkserver (a forked process could not use CUDA" in reply.out
    reply = used_kernel.run(launch("tens", "fork"))
    assert reply.error == "LaunchError"
    assert "cannot fork workers: a forked process could not use CUDA" in reply.traceback
    assert "leave out start_method" in reply.traceback
    used_kernel.run("torch.cuda._is_in_bad_fork = as_it_was")


def test_each_worker_gets_its_share_of_the_cores_as_threads(kernel):
    cores = len(os.sched_getaffinity(0))
    reply = kernel.run(launch("torch.get_num_threads", "fork", "; print(run.values)"))
    assert f"[{max(1, cores // 2)}, {max(1, cores // 2)}]" in reply.out, reply.messages


def test_a_kernel_with_a_process_group_of_its_own_launches_fresh_workers(used_kernel):
    used_kernel.run(
        "group = dict(RANK='0', WORLD_SIZE='1', MASTER_ADDR='127.0.0.1', MASTER_PORT='0')\n"
        "os.environ.update(group); dist.init_process_group('gloo')\n"
        "for name in group: del os.environ[name]"
    )
    reply = used_kernel.run(launch("tens", "auto", "; print(run.values)"))
    assert "by forkserver (a process group of torch.distributed is open" in reply.out
    assert "[10, 10]" in reply.out, reply.messages
    reply = used_kernel.run(launch("tens", "fork"))
    assert reply.error == "LaunchError"
    assert "cannot use an accelerator or a process group that its parent opened" in reply.traceback
    used_kernel.run("dist.destroy_process_group()")
    assert "by fork (" in used_kernel.run(launch("tens")).out


def test_a_worker_cannot_reach_the_kernels_event_loop(kernel):
    """An epoll is one object in both: a worker that emptied it left the kernel deaf."""
    kernel.run(
        "import asyncio; loop = asyncio.get_running_loop()\n"
        "async def later():\n    await asyncio.sleep(0.01); return rank()\n"
        "def train():\n"
        "    registered = list(loop._selector.get_map().values())\n"
        "    for key in registered:\n        loop._selector.unregister(key.fd)\n"
        "    own = asyncio.new_event_loop(); asyncio.set_event_loop(own)\n"
        "    return len(registered) > 0, own.run_until_complete(later()), asyncio.run(later())"
    )
    reply = kernel.run(launch("train", "fork", "; print(run.values)"))
    assert "[(True, 0, 0), (True, 1, 1)]" in reply.out, reply.messages
    assert kernel.run("print('it hears')", timeout_s=20).out == "it hears\n"


def test_coroutines_run_in_workers_of_a_kernel_whose_loops_nest(used_kernel):
    """What ``nest_asyncio`` does is much used in notebooks: it runs the loop that it finds."""
    used_kernel.run(
        "import asyncio\ntry:\n    import nest_asyncio2 as nesting\n"
        "except ImportError:\n    import nest_asyncio as nesting\nnesting.apply()\n"
        "async def later():\n    await asyncio.sleep(0.01); return rank()\n"
        "def train():\n    return asyncio.run(later()), asyncio.run(later())"
    )
    cell = used_kernel.start(launch("train", "fork", "; print(run.values)"))
    behind = used_kernel.start("print('in the kernel', os.getpid())")
    reply = used_kernel.finish(cell)
    assert "[(0, 0), (1, 1)]" in reply.out, reply.messages
    assert used_kernel.finish(behind).out == f"in the kernel {used_kernel.pid}\n"

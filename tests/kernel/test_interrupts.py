"""The interrupt button during training: all ranks stop at the same step, and the rest is kept."""

from __future__ import annotations

import random
import time

import pytest

from tests.kernel.cells import check_aftermath, said, wait_for_file
from tests.support.kernels import family, forkservers, wait_gone

TRAIN = """
from notebook_accel import Accelerator
from torch.utils.data import TensorDataset

def train(folder, work_s=0.0):
    accelerator = Accelerator()
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    loader = DataLoader(TensorDataset(torch.randn(256, 4)), batch_size=8, shuffle=True)
    net, optimizer, loader = accelerator.prepare(
        net, torch.optim.SGD(net.parameters(), lr=0.01), loader
    )
    step = 0
    try:
        for epoch in range(100_000):
            for (x,) in loader:
                loss = (net(x) - 1).square().mean()
                accelerator.backward(loss)
                step += 1
                optimizer.step()  # a stop is raised here, with the step done
                optimizer.zero_grad()
                if step == 3:
                    open(f"{folder}/started{rank()}", "w").close()
                time.sleep(work_s)
    finally:
        weight = sum(p.double().sum().item() for p in net.parameters())
        with open(f"{folder}/{rank()}", "w") as file:
            file.write(f"{step} {weight!r}")
"""


@pytest.fixture(scope="module", autouse=True)
def functions(kernel):
    reply = kernel.run(TRAIN)
    assert not reply.error, reply.traceback


def interrupted(kernel, folder, delay_s, more="", work_s=0.0):
    folder.mkdir()
    cell = kernel.start(
        f"run = notebook_launcher(train, ({str(folder)!r}, {work_s}), num_processes=2{more})"
    )
    for number in (0, 1):
        wait_for_file(folder / f"started{number}")
    pids = family(kernel.pid) - forkservers(kernel.pid)
    time.sleep(delay_s)
    kernel.interrupt()
    reply = kernel.finish(cell, timeout_s=20)
    assert "connection closed" not in said(reply).lower()
    steps = [(folder / str(number)).read_text() for number in (0, 1)]
    assert steps[0] == steps[1], "finally blocks ran on both ranks, at the same step and weights"
    assert wait_gone(pids) == set()
    return reply, int(steps[0].split()[0])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("times", [5, pytest.param(50, marks=pytest.mark.soak)])
def test_interrupts_at_random_moments_stop_all_ranks_at_the_same_step(kernel, tmp_path, times):
    moments = random.Random(times)
    for attempt in range(times):
        reply, step = interrupted(
            kernel,
            tmp_path / str(attempt),
            moments.uniform(0, 1),
            more=f", start_method={moments.choice(['fork', 'forkserver'])!r}",
            work_s=moments.choice([0.0, 0.0, 0.01, 0.1]),
        )
        assert reply.error == "RunInterrupted"
        assert f"the run was stopped at step {step}" in reply.traceback, (step, reply.traceback)
        assert "(sys.last_value.result in the next cell) has the curve" in reply.traceback
    check_aftermath(kernel, [])


def test_the_partial_result_of_an_interrupted_run_is_kept(kernel, tmp_path):
    _, step = interrupted(kernel, tmp_path / "run", 0.3)
    reply = kernel.run(
        "result = sys.last_value.result\n"
        "print(result.stopped, len(result.history['loss']), list(result), result.salvaged)"
    )
    stopped, num_losses, rest = reply.out.split(" ", 2)
    assert stopped == "True"
    assert int(num_losses) == step
    assert rest.startswith("[None, None] [Linear(in_features=4, out_features=1")


def test_an_interrupted_run_can_return_its_partial_result_instead(kernel, tmp_path):
    reply, step = interrupted(kernel, tmp_path / "run", 0.2, more=", on_interrupt='return'")
    assert not reply.error, reply.traceback
    reply = kernel.run("print(run.stopped, len(run.history['loss']), run)")
    assert reply.out.startswith(f"True {step} RunResult(2 CPU processes")
    assert "stopped early" in reply.out


@pytest.mark.timeout(600)
@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("times", [8, pytest.param(50, marks=pytest.mark.soak)])
def test_an_interrupt_during_the_start_leaves_nothing(kernel, times, method):
    moments = random.Random(times)
    for _ in range(times):
        cell = kernel.start(
            "print('begun')\n"
            f"notebook_launcher(lambda: time.sleep(30), num_processes=2, start_method={method!r})"
        )
        kernel.wait_for_output(cell, "begun")  # a kernel between two cells hears no interrupt
        time.sleep(moments.uniform(0, 0.12))
        kernel.interrupt()
        reply = kernel.finish(cell, timeout_s=20)
        ends = ("RunInterrupted", "KeyboardInterrupt")  # IPython may fail to format the second
        assert reply.error in ends or "KeyboardInterrupt" in said(reply), reply.messages
        assert wait_gone(family(kernel.pid) - forkservers(kernel.pid)) == set()
    check_aftermath(kernel, [], method)

"""Runs that outlive their cell, their kernel and their notebook, in real kernels."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.cells import PRELUDE, go, wait_for_file
from tests.support.kernels import Kernel, family, wait_gone

TRAIN = """
from notebook_accel import Accelerator, runs
from torch.utils.data import TensorDataset

def train(folder, work_s=0.0, then=""):
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    net, optimizer, loader = accelerator.prepare(
        *(lambda net: (net, torch.optim.SGD(net.parameters(), lr=0.01)))(nn.Linear(4, 1)),
        DataLoader(TensorDataset(torch.randn(16_000, 4)), batch_size=8),
    )
    print("rank", rank(), "begins")
    for step, (x,) in enumerate(loader, 1):
        accelerator.backward((net(x) - 1).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        if step == 29:
            time.sleep(0.06)  # the next step is told at once, with all before it
        if step == 30:
            open(f"{folder}/halfway{rank()}", "w").close()
            while not os.path.exists(f"{folder}/go"):
                time.sleep(0.01)
            if then:
                raise ValueError(then)
        if step >= 30:
            time.sleep(work_s)
        if step == 60:
            return step
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Kernel, Kernel]]:
    with Kernel() as first, Kernel() as second:
        yield first, second


@pytest.fixture
def notebooks(pair: tuple[Kernel, Kernel], root: Path) -> tuple[Kernel, Kernel]:
    """Two notebooks that share one shelf."""
    for kernel in pair:
        prepare(kernel, root)
    return pair


def prepare(kernel: Kernel, root: Path) -> None:
    reply = kernel.run(PRELUDE + TRAIN + f"os.environ['NOTEBOOK_ACCEL_RUNS'] = {str(root)!r}")
    assert not reply.error, reply.traceback


def launched(kernel: Kernel, folder: Path, more: str = "", work: str = "") -> str:
    cell = kernel.start(
        f"run = notebook_launcher(train, ({str(folder)!r},{work}), num_processes=2{more})"
    )
    for number in (0, 1):
        wait_for_file(folder / f"halfway{number}")
    return cell


def eventually(kernel: Kernel, code: str, wanted: str, timeout_s: float = 20.0) -> str:
    """Run a cell until it prints ``wanted``: what a record says comes a moment later."""
    deadline = time.monotonic() + timeout_s
    while True:
        reply = kernel.run(code)
        assert not reply.error, reply.traceback
        if wanted in reply.out:
            return reply.out
        assert time.monotonic() < deadline, reply.out
        time.sleep(0.1)


def test_a_run_can_be_looked_at_while_it_goes_on(
    notebooks: tuple[Kernel, Kernel], tmp_path: Path
) -> None:
    kernel, other = notebooks
    kernel.finish(launched(kernel, tmp_path, ", block=False"))
    eventually(kernel, "print(run, len(run.history['loss']))", "Run(running, step 30) 30")
    reply = kernel.run("print(run.logs(1) == 'rank 1 begins\\n', 'rank 0 begins' in run.logs[0])")
    assert reply.out == "True True\n", reply.traceback
    assert "image/png" in kernel.run("run.show()").displays[-1]
    said = eventually(
        other,
        "last = runs.last(); print(last.id, last.ended, last.step, last.logs(1))",
        "running 30 rank 1 begins",
    )
    name = said.split()[0]
    assert kernel.run("print(run.id, run.path)").out.split()[0] == name
    page = tmp_path / "report.html"
    kernel.run(f"run.report({str(page)!r})")
    assert "running" in page.read_text()
    go(tmp_path)
    kernel.run("result = run.wait(30)")
    reply = other.run(f"last = runs.get({name[-3:]!r}); print(last.ended, last.step)")
    assert reply.out == "finished 60\n"
    reply = kernel.run(
        "print(result.id == run.id == runs.last().id, result.logs(0) == run.logs(0))"
    )
    assert reply.out == "True True\n", reply.traceback


def test_two_notebooks_record_at_once_on_one_shelf(
    notebooks: tuple[Kernel, Kernel], tmp_path: Path
) -> None:
    cells = []
    for number, kernel in enumerate(notebooks):
        folder = tmp_path / str(number)
        folder.mkdir()
        kernel.run("from notebook_accel.events import shelf; shelf.MAX_RUNS = 1")
        cells.append(launched(kernel, folder))
    for number in range(2):
        go(tmp_path / str(number))
    replies = [
        kernel.finish(cell, timeout_s=60) for kernel, cell in zip(notebooks, cells, strict=True)
    ]
    assert [reply.error for reply in replies] == ["", ""]
    for kernel in notebooks:
        assert (
            kernel.run("print(run.record.ended, len(run.history['loss']))").out == "finished 60\n"
        )
    reply = notebooks[0].run("print(len(runs.list()), runs.last().step)")
    assert reply.out == "1 60\n", "running ones were kept, then the limit held"


def test_a_failed_run_is_on_record_with_its_error(
    notebooks: tuple[Kernel, Kernel], tmp_path: Path
) -> None:
    kernel, other = notebooks
    cell = launched(kernel, tmp_path, work='0.0, "too hot"')
    go(tmp_path)
    assert kernel.finish(cell).error == "ValueError"
    reply = other.run("last = runs.last(); print(last.ended, last.story.error, last.step)")
    assert reply.out == "failed ValueError: too hot 30\n"
    assert "✗ failed: ValueError" in other.run("print(runs.list())").out


def test_a_loop_in_a_cell_is_on_record_too(
    notebooks: tuple[Kernel, Kernel], tmp_path: Path
) -> None:
    kernel, other = notebooks
    go(tmp_path)
    kernel.run("os.environ['RANK'] = '0'")  # for the names of files, as in a worker
    number = kernel.execution_count + 1
    reply = kernel.run(f"train({str(tmp_path)!r})")
    assert not reply.error, reply.traceback
    kernel.run("del os.environ['RANK']")
    reply = other.run("last = runs.last(); print(last.about.title, last.ended, last.step)")
    assert reply.out == f"In[{number}] on cpu finished 60\n", reply.traceback
    assert "60" in other.run("print(len(last.history['loss']))").out


def test_nothing_is_written_when_records_are_off(
    notebooks: tuple[Kernel, Kernel], root: Path
) -> None:
    kernel, _ = notebooks
    before = set(Path.cwd().iterdir())
    reply = kernel.run(
        "os.environ['NOTEBOOK_ACCEL_RUNS'] = 'off'\n"
        "run = notebook_launcher(rank, num_processes=1); print(run.path, run.record.ended)"
    )
    assert reply.out.endswith("None finished\n"), reply.traceback
    assert not root.exists() and set(Path.cwd().iterdir()) == before


def test_a_restarted_kernel_shows_the_run_and_the_interrupted_one_is_its_partial_result(
    own_kernel: Kernel, root: Path, tmp_path: Path
) -> None:
    kernel = own_kernel
    prepare(kernel, root)
    cell = launched(kernel, tmp_path, work="0.05")
    go(tmp_path)
    kernel.interrupt()
    assert kernel.finish(cell, timeout_s=20).error == "RunInterrupted"
    reply = kernel.run(
        "result, last = sys.last_value.result, runs.last()\n"
        "print(last.id == result.id, last.history['loss'] == result.history['loss'], last.ended)\n"
        "print(runs.get(sys.last_value).id == last.id, last.logs(0) == result.logs(0))"
    )
    assert reply.out == "True True stopped\nTrue True\n", reply.traceback
    before = kernel.run("print(repr(last))").out
    kernel.restart()
    prepare(kernel, root)
    reply = kernel.run("last = runs.last()\nlast.show()")
    assert not reply.error, reply.traceback
    shown = reply.displays[-1]
    assert base64.b64decode(shown["image/png"]).startswith(b"\x89PNG")
    assert "main" not in shown["text/plain"] and "train on 2 CPU processes" in shown["text/plain"]
    assert kernel.run("print(repr(last))").out == before
    reply = kernel.run("runs.list()")
    assert any("■ stopped" in str(content) for _, content in reply.messages)


# ── the end of the first notebook, which no other test may need any more ──────────────────────


def test_a_killed_kernels_run_is_on_record_as_far_as_it_came(
    notebooks: tuple[Kernel, Kernel], tmp_path: Path
) -> None:
    kernel, other = notebooks
    launched(kernel, tmp_path)
    eventually(other, "print(runs.last().ended, runs.last().step)", "running 30")
    everybody = family(kernel.pid)
    kernel.kill()
    assert wait_gone(everybody) == set()
    reply = other.run("last = runs.last(); print(last.ended, last.step, last.logs(0))")
    assert reply.out.startswith("lost with its kernel 30 "), reply.traceback
    assert "rank 0 begins" in reply.out
    assert "† lost with its kernel" in other.run("print(runs.list())").out

"""The panel in a real kernel: in a launch, in a plain loop, as a widget that hears clicks."""

from __future__ import annotations

import pytest

MAIN = """
import os
from notebook_accel import Accelerator

def main(num_steps):
    accelerator = Accelerator()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(torch.randn(num_steps * accelerator.num_processes, 4))
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x in loader:
        accelerator.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.01)
"""
VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def panel_kernel(kernel):
    reply = kernel.run(MAIN)
    assert not reply.error, reply.traceback
    yield kernel
    kernel.run("os.environ.pop('NOTEBOOK_ACCEL_UI', None)")


def pictures(reply):
    return [data for data in reply.displays if "image/png" in data]


def texts(reply):
    return [data["text/plain"] for data in reply.displays if "text/html" in data]


def test_a_launch_shows_its_ranks_and_ends_with_words_and_a_picture(panel_kernel):
    panel_kernel.run("notebook_launcher(main, (3,), num_processes=2)")  # imports what draws
    reply = panel_kernel.run("run = notebook_launcher(main, (150,), num_processes=2)")
    assert not reply.error, reply.traceback
    moving, last = texts(reply)[1:-1], texts(reply)[-1]
    assert any("rank 0: training · step " in text and " MB" in text for text in moving)
    assert any("epoch 0 · batch " in text for text in moving)
    assert last.startswith("150 steps in ") and "rank 1: done · step 150" in last
    assert "lr 0.01" in last
    assert "loss" in pictures(reply)[-1]["text/plain"]


def test_a_loop_in_the_kernel_has_the_view_in_each_cell_in_which_it_goes_on(panel_kernel):
    panel_kernel.run(
        "accelerator = Accelerator()\nw = nn.Parameter(torch.ones(1))\n"
        "optimizer = accelerator.prepare(torch.optim.SGD([w], lr=0.01))\n"
        "def go(n):\n    for _ in range(n):\n        accelerator.backward((w * w).sum())\n"
        "        optimizer.step(); optimizer.zero_grad()"
    )
    first = panel_kernel.run("go(30)")
    assert texts(first)[-1].startswith("30 steps in ")
    second = panel_kernel.run("go(20)")
    assert texts(second)[-1].startswith("20 steps (30 to 50) in ")
    assert " over 50 steps" in texts(second)[-1], "the curve goes on"
    failed = panel_kernel.run("go(3); 1 / 0")
    assert failed.error == "ZeroDivisionError"
    assert texts(failed)[-1].startswith("raised ZeroDivisionError · 3 steps")
    assert panel_kernel.run("print('quiet')").kinds() == ["stream"]


def test_trainings_of_one_cell_are_runs_of_their_own(panel_kernel):
    panel_kernel.run("def sweep():\n    for n in (40, 20, 20):\n        main(n)\n    1 / 0")
    reply = panel_kernel.run("sweep()")
    assert reply.error == "ZeroDivisionError"
    lasts = [text for text in texts(reply) if " steps in " in text]
    assert [text.partition(" in ")[0] for text in lasts] == [
        "40 steps", "20 steps", "raised ZeroDivisionError · 20 steps",
    ]  # fmt: skip
    titles = [data["text/plain"].partition("\n")[0] for data in pictures(reply)]
    assert titles[0] == "in this kernel, on cpu"
    assert titles[-1] == "in this kernel, on cpu, run 3 of this cell"
    told = panel_kernel.run(
        "from notebook_accel import runs\n"
        "for run in reversed(runs.list(3)):\n"
        "    print(run.about.function.partition(']')[2], run.ended, run.story.took_s)"
    ).out.splitlines()
    told = [line.rpartition(" ") for line in told]
    assert [ended for ended, _, _ in told] == [" finished", ", run 2 finished", ", run 3 failed"]
    first, second, third = (float(took) for _, _, took in told)
    assert first > second and first > third, "none of them took until the end of the cell"


def test_a_loop_written_into_cells_goes_on_with_its_curve(panel_kernel):
    panel_kernel.run(
        "accelerator = Accelerator()\nw = nn.Parameter(torch.ones(1))\n"
        "optimizer = accelerator.prepare(torch.optim.SGD([w], lr=0.01))"
    )
    loop = (
        "for _ in range({}):\n"
        "    accelerator.backward((w * w).sum())\n"
        "    accelerator.backward(w.abs().sum())\n"
        "    optimizer.step(); optimizer.zero_grad()\n"
    )
    for cell in (loop.format(30), loop.format(20), loop.format(20)):
        last = panel_kernel.run(cell)
    assert not last.error, last.traceback
    facts = [line.partition(" ")[0] for line in texts(last)[-1].splitlines() if "loss" in line]
    assert "loss/2" in facts and "loss/3" not in facts
    assert texts(last)[-1].count(" over 70 steps") == 2


def test_short_cells_close_to_each_other_are_each_shown_where_nothing_takes_time_to_draw(
    panel_kernel,
):
    panel_kernel.run(
        "os.environ['NOTEBOOK_ACCEL_UI'] = 'text'\naccelerator = Accelerator()\n"
        "w = nn.Parameter(torch.ones(1))\n"
        "optimizer = accelerator.prepare(torch.optim.SGD([w], lr=0.01))\n"
        "def go(n):\n    for _ in range(n):\n        accelerator.backward((w * w).sum())\n"
        "        optimizer.step(); optimizer.zero_grad()"
    )
    cells = [panel_kernel.start("go(2)") for _ in range(5)]
    replies = [panel_kernel.finish(cell) for cell in cells]
    wanted = ["2 steps in ", *(f"2 steps ({n} to {n + 2}) in " for n in (2, 4, 6, 8))]
    assert all(part in reply.out for part, reply in zip(wanted, replies, strict=True))


def test_off_means_that_nothing_is_watched(panel_kernel):
    panel_kernel.run("os.environ['NOTEBOOK_ACCEL_UI'] = 'off'")
    assert panel_kernel.run("print(Accelerator()._live)").out == "None\n"
    reply = panel_kernel.run("run = notebook_launcher(main, (5,), num_processes=2)")
    assert reply.displays == []


def test_a_widget_is_only_there_while_the_run_goes_on(panel_kernel):
    panel_kernel.run("os.environ['NOTEBOOK_ACCEL_UI'] = 'canvas'")
    reply = panel_kernel.run("run = notebook_launcher(main, (150,), num_processes=2)")
    assert not reply.error, reply.traceback
    kinds = reply.kinds()
    assert "comm_open" in kinds and kinds.count("comm_msg") >= 3
    assert sum(VIEW in data for data in reply.displays) == 1
    assert [VIEW in data for data in reply.displays[-2:]] == [False, False]
    assert texts(reply)[-1].startswith("150 steps in ")
    assert len(pictures(reply)) == 1


def test_a_click_on_stop_ends_a_run_in_the_background(panel_kernel):
    panel_kernel.run(
        "os.environ['NOTEBOOK_ACCEL_UI'] = 'canvas'\n"
        "from notebook_accel.ui import canvas; canvas._kept.clear()\n"
        "run = notebook_launcher(main, (20_000,), num_processes=2, block=False)"
    )
    waiting = "while not canvas._kept: time.sleep(0.1)\nprint(canvas._kept[-1]._widget.model_id)"
    model = panel_kernel.run(waiting, timeout_s=60).out.split()[-1]
    panel_kernel.send_comm(model, {"method": "custom", "content": {"ask": "stop"}})
    reply = panel_kernel.run("result = run.wait(60)", timeout_s=90)
    assert reply.error == "RunInterrupted", reply.messages


def test_the_page_is_asked_before_it_gets_a_widget(panel_kernel):
    """A page that may have what draws gets pictures until it says that it has."""
    panel_kernel.run("import notebook_accel.ui.live as live\nfrom notebook_accel.ui import screens")
    reply = panel_kernel.run(
        "from notebook_accel.events.history import History\n"
        "from notebook_accel.events.model import Metrics, Progress\n"
        "from notebook_accel.ui.panel import Panel\n"
        "history = History(); panel = Panel(history, 'run', 1)\n"
        "screen = screens.CellScreen('ask')\n"
        "def step(n):\n"
        "    for event in (Metrics(0, [('loss', n, 1 / n)]), Progress(0, n)):\n"
        "        history.handle(event); panel.handle(event)\n"
        "    screen.refresh(panel)\n"
        "for n in range(1, 60):\n    step(n); time.sleep(0.02)"
    )
    assert not reply.error, reply.traceback
    opened = [c for t, c in reply.messages if t == "comm_open" and "_esm" in str(c["data"])]
    assert len(opened) == 1 and pictures(reply)
    assert not any(VIEW in data for data in reply.displays)
    panel_kernel.send_comm(opened[0]["comm_id"], {"method": "custom", "content": {"ask": "hello"}})
    reply = panel_kernel.run("for n in range(60, 70):\n    step(n); time.sleep(0.02)", after_s=0.5)
    assert sum(VIEW in data for data in reply.displays) == 1

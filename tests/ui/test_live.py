"""The live view: as text here, as pictures in a real kernel."""

import io
import time

import nbformat
import pytest
from nbclient import NotebookClient

from notebook_accel.events.history import History
from notebook_accel.events.model import (
    Exited,
    Failed,
    Lost,
    Metrics,
    Output,
    Progress,
    Returned,
)
from notebook_accel.ui.live import LiveView, live_view, show
from notebook_accel.ui.pace import Pace
from notebook_accel.ui.panel import Panel
from notebook_accel.ui.screens import CellScreen, TextScreen


class Feed:
    """A history and a view that get the same events, as the launcher hands them out."""

    def __init__(self, view_of=live_view):
        self.history = History()
        self.view = view_of(self.history, "main", 2)

    def send(self, *events):
        for event in events:
            self.history.handle(event)
            self.view.handle(event)
        self.view.tick()

    def close(self):
        self.history.close()
        self.view.close()


def steps(*numbers):
    for step in numbers:
        for rank in (0, 1):
            yield Metrics(rank, [("loss", step, 2.0 / step)])
            yield Progress(rank, step, 0, step, 10, 32 * step)


def text_view(stream, rewrites):
    def make(history, title, num_ranks):
        return LiveView(Panel(history, title, num_ranks), TextScreen(stream, rewrites))

    return make


def test_a_run_without_metrics_shows_nothing(capsys):
    feed = Feed()
    feed.send(Output(0, "stdout", "hello\n"), Returned(0, 0), Returned(1, 0), Exited(0, 0))
    feed.close()
    assert capsys.readouterr() == ("", "")


def test_a_script_ends_with_one_line_on_stderr(capsys):
    feed = Feed()
    feed.send(*steps(1, 2, 3, 4), Returned(0, 0), Returned(1, 0))
    feed.close()
    out, err = capsys.readouterr()
    assert out == "", "stdout belongs to the user's function"
    assert err.startswith("main: 4 steps in ")
    assert err.endswith("loss 2.000 -> 0.500\n")
    assert err.count("\n") == 1


def test_a_terminal_rewrites_one_line_and_clears_it_before_other_output():
    stream = io.StringIO()
    feed = Feed(text_view(stream, rewrites=True))
    feed.send(*steps(1))
    assert stream.getvalue() == "\r\x1b[Kepoch 0 · batch 1/10 · step 1 · loss 2.000"
    feed.send(Output(0, "stdout", "hello\n"))
    assert stream.getvalue().endswith("loss 2.000\r\x1b[K")
    feed.send(*steps(2))
    assert stream.getvalue().endswith("\r\x1b[K"), "the batch with hello may still be on its way"
    assert "\n" not in stream.getvalue()
    feed.close()
    assert stream.getvalue().count("\n") == 1


def test_a_reader_that_has_gone_ends_the_view_and_not_the_run(monkeypatch):
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr("sys.stderr", Gone())
    feed = Feed(text_view(Gone(), rewrites=True))
    feed.send(*steps(1, 2, 3))
    feed.close()
    assert feed.history["loss"] == [2.0, 1.0, 2.0 / 3]


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (Failed(1, "ValueError", "x", [], ""), "rank 1 raised ValueError"),
        (Exited(1, 3), "rank 1 left with exit code 3"),
        (Exited(1, -9), "rank 1 was killed by SIGKILL"),
        (Exited(1, -40), "rank 1 was killed by signal 40"),
        (Returned(0, 0, stopped=True), "stopped"),
    ],
)
def test_a_run_that_ended_early_says_why(capsys, last, said):
    feed = Feed()
    feed.send(*steps(1, 2), last)
    feed.close()
    assert f"main: {said} · 2 steps in " in capsys.readouterr().err


def test_the_blame_is_not_on_a_rank_that_only_lost_its_peer(capsys):
    feed = Feed()
    feed.send(*steps(1), Failed(0, "RuntimeError", "connection closed", [], "", is_comm=True))
    feed.send(Failed(1, "ValueError", "x", [], ""))
    feed.close()
    assert "rank 1 raised ValueError" in capsys.readouterr().err


def test_a_lost_machine_is_why_a_run_ended_and_not_a_rank_that_lost_its_peer(capsys):
    feed = Feed()
    feed.send(*steps(1), Failed(1, "RuntimeError", "connection closed", [], "", is_comm=True))
    feed.send(Exited(1, 1), Lost("machine 1 (atlas, 10.0.0.2)"), Exited(0, -15, by_us=True))
    feed.close()
    assert "main: machine 1 (atlas, 10.0.0.2) was lost · 1 step in" in capsys.readouterr().err


def test_off_means_off(monkeypatch, capsys):
    monkeypatch.setenv("NOTEBOOK_ACCEL_UI", "off")
    feed = Feed()
    feed.send(*steps(1, 2))
    feed.close()
    assert capsys.readouterr() == ("", "")


def test_a_view_that_cannot_draw_says_so_once_and_never_raises(capsys):
    stream = io.StringIO()
    feed = Feed(text_view(stream, rewrites=True))
    stream.close()
    feed.send(*steps(1, 2, 3))
    feed.close()
    err = capsys.readouterr().err
    assert err.count("the live view stopped (ValueError: ") == 1
    assert "run.history has every point" in err
    assert len(feed.history["loss"]) == 3


def test_show_tells_the_facts_where_there_is_no_screen(capsys):
    feed = Feed()
    show(feed.history, "main")
    feed.send(*steps(1, 2, 4))
    show(feed.history, "main")
    assert capsys.readouterr().out.splitlines() == [
        "main: nothing was reported",
        "main",
        "loss 2.000 -> 0.500 over 4 steps, best 0.500 at 4",
    ]


KERNEL_CELL = """
import time
from notebook_accel.events.history import History
from notebook_accel.events.model import Metrics, Progress, Returned
from notebook_accel.ui.live import live_view, show
history = History()
view = live_view(history, "main · 2 CPU processes", 1)
end = time.monotonic() + SECONDS
step = 0
while time.monotonic() < end or step < 5:
    step += 1
    progress = Progress(0, step, 0, step % 50, 50, step)
    for event in (Metrics(0, [("loss", step, 2 / step)]), progress):
        history.handle(event)
        view.handle(event)
    view.tick()
    time.sleep(0.02)
view.handle(Returned(0, 0))
history.close()
view.close()
print("after")
"""


def run_cells(*sources):
    """Run cells in a real kernel; return the notebook and every display message by kind."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])
    seen = []

    class Client(NotebookClient):
        def process_message(self, msg, cell, cell_index):
            seen.append((msg["msg_type"], msg["content"]))
            return super().process_message(msg, cell, cell_index)

    Client(notebook, timeout=60, kernel_name="python3").execute()
    return notebook, seen


def test_a_cell_shows_a_line_and_a_picture_that_move_and_stay():
    notebook, seen = run_cells(KERNEL_CELL.replace("SECONDS", "3"), "show(history, 'again')")
    line, picture, after = notebook.cells[0].outputs
    assert after.text == "after\n"
    assert set(picture.data) == {"image/png", "text/plain"}
    assert picture.data["text/plain"].startswith("main · 2 CPU processes\nloss 2.000 -> ")
    assert picture.metadata["image/png"] == {"width": 720}
    assert "loss 2.000 -> " in line.data["text/plain"]
    assert "steps in" in line.data["text/html"]
    updates = [content["data"] for kind, content in seen if kind == "update_display_data"]
    images = [data["image/png"] for data in updates if "image/png" in data]
    assert len(set(images)) == len(images) >= 2, "the curve moved while the cell ran"
    assert any("/50 · step " in data["text/plain"] for data in updates), "so did the line"
    shown = notebook.cells[1].outputs[0]
    assert set(shown.data) == {"image/png", "text/plain"}


def test_a_very_short_run_still_leaves_its_picture():
    notebook, _ = run_cells(KERNEL_CELL.replace("SECONDS", "0"))
    assert "image/png" in notebook.cells[0].outputs[1].data


def test_a_run_of_one_step_says_so_and_draws_nothing():
    one_step = KERNEL_CELL.replace("SECONDS", "0").replace("step < 5", "step < 1")
    asked = "import sys; print('matplotlib' in sys.modules)"
    notebook, _ = run_cells(one_step, asked)
    line, place, _ = notebook.cells[0].outputs
    assert line.data["text/plain"].endswith("loss 2.000 at step 1")
    assert place.data == {"text/plain": ""}
    assert notebook.cells[1].outputs[0].text == "False\n"


def test_a_kernel_told_to_speak_text_publishes_no_picture():
    setting = "import os; os.environ['NOTEBOOK_ACCEL_UI'] = 'text'"
    notebook, seen = run_cells(setting, KERNEL_CELL.replace("SECONDS", "0"))
    assert not [kind for kind, _ in seen if "display" in kind]
    assert notebook.cells[1].outputs[0].text.startswith("main · 2 CPU processes: ")


def test_a_refresh_waits_a_hundred_times_its_cost():
    def burn():
        start = time.thread_time()
        while time.thread_time() - start < 0.02:
            pass

    pace, drawn = Pace(0.0), []
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        pace.run(lambda: drawn.append(burn()))
    assert len(drawn) == 1
    assert CellScreen.PICTURE_INTERVAL_S >= 0.25, "at most four pictures a second"

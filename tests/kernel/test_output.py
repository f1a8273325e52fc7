"""What the ranks write and display, and how it arrives in the cell."""

from __future__ import annotations

import re

import pytest

from tests.kernel.cells import launch

both_methods = pytest.mark.parametrize("method", ["fork", "forkserver"])


def said_by_ranks(reply):
    """The lines after those in which the launch speaks of itself."""
    lines = reply.out.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("Launching on "))
    told = "importing what workers need"  # on a machine that is slow at it
    return [line for line in lines[first + 1 :] if not line.startswith(told)]


@both_methods
def test_10000_lines_of_each_of_4_ranks_arrive_whole_in_few_messages(kernel, method):
    kernel.run(
        "def train():\n    for i in range(10_000):\n        print('line', i, 'of', rank(), 'end')"
    )
    reply = kernel.run(launch("train", method, num_processes=4), timeout_s=30)
    lines = said_by_ranks(reply)
    for number in range(4):
        mine = [line for line in lines if line.startswith(f"[{number}] ")]
        assert mine == [f"[{number}] line {i} of {number} end" for i in range(10_000)]
    assert len(lines) == 40_000
    assert reply.kinds().count("stream") <= 40, "a batch at a time, not a line at a time"


def told(text, number, line):
    """Whether rank ``number`` is seen to say ``line``, alone or together with the other."""
    return re.search(rf"^\[({number}|0,1)\] {line}$", text.replace("\r", "\n"), re.MULTILINE)


@both_methods
def test_writes_below_python_arrive_tagged(kernel, method):
    kernel.run(
        "def train():\n"
        "    os.write(1, b'by descriptor\\n')\n"
        "    subprocess.run(['echo', 'by subprocess'], check=True)\n"
        "    ctypes.CDLL(None).puts(b'by C')\n"
        "    ctypes.CDLL(None).fflush(None)\n"
        "    os.write(2, b'to stderr\\n')\n"
        "    print('by', 'print', flush=True)\n"
        "    sys.__stdout__.write('by dunder\\n')"
    )
    reply = kernel.run(launch("train", method))
    for number in (0, 1):
        for words in ("by descriptor", "by subprocess", "by C", "by print", "by dunder"):
            assert told(reply.out, number, words)
        assert told(reply.err, number, "to stderr")


@both_methods
def test_odd_texts_arrive(kernel, method):
    kernel.run(
        "def train():\n"
        "    os.write(1, b'bad \\xff\\xfe bytes\\n')\n"
        "    os.write(1, 'half \\u00e9'.encode()[:-1]); time.sleep(0.1)\n"
        "    os.write(1, 'half \\u00e9'.encode()[-1:] + b' whole\\n')\n"
        "    print('\\ud800 surrogate')\n"
        "    print('x' * 1_000_000)\n"
        "    print('\\n\\nempty lines')\n"
        "    print('no end', end='')"
    )
    reply = kernel.run(launch("train", method, num_processes=1))
    lines = reply.out.splitlines()[1:]
    assert lines[:3] == ["bad \ufffd\ufffd bytes", "half \u00e9 whole", "\\ud800 surrogate"]
    assert "".join(lines[3:-4]) == "x" * 1_000_000
    assert lines[-4:] == ["", "", "empty lines", "no end"]
    assert reply.out.endswith("no end\n")


@both_methods
def test_partial_last_lines_of_ranks_are_not_glued(kernel, method):
    kernel.run("def train():\n    print(f'last words of {rank()}', end='')")
    reply = kernel.run(launch("train", method, num_processes=3))
    lines = sorted(said_by_ranks(reply))
    assert lines == [f"[{number}] last words of {number}" for number in range(3)]


@both_methods
def test_a_progress_bar_moves_by_carriage_returns(kernel, method):
    kernel.run(
        "def train():\n    for i in range(1, 4):\n"
        "        sys.stderr.write(f'\\r{i} of 3'); sys.stderr.flush(); time.sleep(0.12)\n"
        "    sys.stderr.write('\\n')"
    )
    reply = kernel.run(launch("train", method))
    for number in (0, 1):
        for i in (1, 2, 3):
            assert told(reply.err, number, f"{i} of 3")
    assert reply.kinds().count("stream") >= 3, "it moves while the run goes on"


@both_methods
def test_output_before_a_death_and_after_a_return_arrives(kernel, method):
    kernel.run(
        "import atexit\n"
        "def train():\n"
        "    atexit.register(print, f'exit function of {rank()}')\n"
        "    sys.stdout.write(f'last words of {rank()}'); sys.stdout.flush()\n"
        "    if rank() == 1:\n        os.kill(os.getpid(), signal.SIGKILL)"
    )
    reply = kernel.run(launch("train", method))
    assert reply.error == "WorkerDied"
    assert "[1] last words of 1\n" in reply.out
    kernel.run("def train():\n    atexit.register(print, 'exit function of', rank())")
    reply = kernel.run(launch("train", method))
    assert "[0] exit function of 0\n" in reply.out and "[1] exit function of 1\n" in reply.out


@both_methods
def test_display_and_notebook_bars_arrive_from_rank_0(kernel, method):
    kernel.run(
        "def train():\n"
        "    from IPython.display import HTML, display\n"
        "    from tqdm.auto import tqdm\n"
        "    handle = display(HTML(f'<b>first of {rank()}</b>'), display_id=True)\n"
        "    handle.update(HTML(f'<b>second of {rank()}</b>'))\n"
        "    for _ in tqdm(range(3), desc='bar'):\n        time.sleep(0.15)\n"
        "    from tqdm.notebook import tqdm_notebook\n"
        "    return issubclass(tqdm, tqdm_notebook)"
    )
    reply = kernel.run(launch("train", method, "; print(run.values)"), after_s=0.3)
    assert not reply.error, reply.traceback
    html = [data.get("text/html") for data in reply.displays]
    assert html.count("<b>first of 0</b>") == 1 and html.count("<b>second of 0</b>") == 1
    assert "<b>first of 1</b>" not in html
    assert "[True, True]" in reply.out
    assert any("application/vnd.jupyter.widget-view+json" in data for data in reply.displays)
    kinds = reply.kinds()
    assert kinds.index("comm_open") < kinds.index("comm_msg"), "the bar is made, then it moves"


@both_methods
def test_a_figure_of_a_worker_arrives(kernel, method):
    kernel.run(
        "def train():\n"
        "    from IPython.display import display\n"
        "    from matplotlib.figure import Figure\n"
        "    figure = Figure(figsize=(1, 1)); figure.add_subplot().plot([1, 2])\n"
        "    from IPython.core.pylabtools import print_figure\n"
        "    display({'image/png': print_figure(figure)}, raw=True)"
    )
    reply = kernel.run(launch("train", method))
    assert not reply.error, reply.traceback
    assert [data for data in reply.displays if "image/png" in data], reply.kinds()


@both_methods
def test_input_is_refused_with_the_cure(kernel, method):
    kernel.run("def train():\n    return input('name? ')")
    reply = kernel.run(launch("train", method))
    assert reply.error == "LaunchError"
    assert "input('name? ') cannot be answered in worker" in reply.traceback
    assert "ask in the cell before the launch" in reply.traceback


def test_each_ranks_log_is_kept_in_the_result(kernel):
    kernel.run("def train():\n    print('said by', rank())")
    reply = kernel.run(launch("train", "auto", "; print(run.logs)"))
    assert "['said by 0\\n', 'said by 1\\n']" in reply.out


def test_a_template_stands_before_each_line(kernel):
    kernel.run("def train():\n    print('said')")
    reply = kernel.run(
        "run = notebook_launcher(train, num_processes=2, log_line_prefix_template='<${rank}> ')"
    )
    assert "<0> said\n" in reply.out and "<1> said\n" in reply.out


@both_methods
def test_a_guard_rail_of_a_worker_warns_in_the_cell(kernel, method):
    kernel.run(
        "def careless():\n"
        "    from notebook_accel import Accelerator\n"
        "    parameters = torch.nn.Linear(1, 1).parameters()\n"
        "    Accelerator().prepare(torch.optim.SGD(parameters, lr=0.1))\n"
        "    return 'trained'\n"
    )
    reply = kernel.run(launch("careless", method, "; print(run[0])", num_processes=1))
    assert not reply.error, reply.traceback
    assert reply.out.endswith("trained\n")
    assert "GuardRail: the result of prepare() is thrown away" in reply.err
    assert f"Cell In[{kernel.execution_count - 1}], line 4" in reply.err

"""A real notebook that another machine joins: what is shown, what is saved, how it stops."""

from __future__ import annotations

import re
import time

import pytest

from tests.support.kernels import Kernel, Reply, family, forkservers, wait_gone
from tests.support.machines import Joiner

pytestmark = pytest.mark.slow

TRAIN = """
from notebook_accel import Accelerator

class Answer:
    def __init__(self, rank):
        self.rank = rank

def train(num_steps, how=""):
    accelerator = Accelerator()
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for step in range(num_steps):
        loss = (net(torch.ones(2, 4)) - accelerator.process_index).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if num_steps > 100:
            time.sleep(0.01)
            if step == 20:
                print("under way")
    if how == "fail" and accelerator.process_index == 1:
        raise ValueError("over there")
    return Answer(accelerator.process_index)
"""


@pytest.fixture(scope="module", autouse=True)
def functions(kernel: Kernel) -> None:
    reply = kernel.run(TRAIN)
    assert not reply.error, reply.traceback


def launch(kernel: Kernel, call: str) -> tuple[str, str, str, Reply]:
    """Start a cell that waits for a machine; give its id, the address, the token, its words."""
    cell = kernel.start(
        f"run = notebook_launcher(train, ({call},), 1, num_nodes=2, join=True, device='cpu')"
    )
    seen = Reply()
    address = token = None
    deadline = time.monotonic() + 60
    while not (address and token):
        assert time.monotonic() < deadline, seen.messages
        message = kernel._client.get_iopub_msg(timeout=60)
        content = message["content"]
        if message["msg_type"] in ("stream", "display_data"):
            seen.messages.append((message["msg_type"], content))
        address = address or re.search(r"notebook-accel join (\S+)", content.get("text", ""))
        data = content.get("data", {})
        if message["msg_type"] in ("comm_open", "display_data"):
            shown = str(data.get("text/plain") or data.get("state", {}).get("value"))
            token = token or re.search(r"token: ([A-Z2-7-]+)", shown)
    return cell, address.group(1), token.group(1), seen


def saved(*replies: Reply) -> str:
    """Everything that the notebook file would keep of a cell."""
    kept = ("stream", "display_data", "update_display_data", "execute_result", "error")
    return str([message for reply in replies for message in reply.messages if message[0] in kept])


def test_a_client_without_widgets_is_shown_the_token_until_it_has_served(kernel: Kernel) -> None:
    cell, address, token, before = launch(kernel, "5")
    assert before.displays == [{"text/plain": f"token: {token}"}]
    with Joiner(address, token) as joiner:
        reply = kernel.finish(cell, timeout_s=90)
        assert not reply.error, reply.traceback
        assert joiner.end()[0] == 0
    words = "(The token stood here while the run waited for the other machines.)"
    replaced = next(c for kind, c in reply.messages if kind == "update_display_data")
    assert replaced["data"] == {"text/plain": words}
    (first,) = [c for kind, c in before.messages if kind == "display_data"]
    assert replaced["transient"] == first["transient"], "it replaces what was shown"
    assert token not in saved(reply)


def test_a_page_with_widgets_shows_the_token_and_saves_none(kernel: Kernel) -> None:
    kernel.run("os.environ['NOTEBOOK_ACCEL_UI'] = 'canvas'")
    try:
        cell, address, token, before = launch(kernel, "5")
    finally:
        kernel.start("del os.environ['NOTEBOOK_ACCEL_UI']")
    with Joiner(address, token) as joiner:
        reply = kernel.finish(cell, timeout_s=90)
        assert not reply.error, reply.traceback
        assert joiner.end()[0] == 0
    assert token not in saved(before, reply)
    first = (before.displays + reply.displays)[0]
    assert "application/vnd.jupyter.widget-view+json" in first
    assert "The token stands here while the run waits" in first["text/plain"]
    last = {"text/plain": "(The token stood here while the run waited for the other machines.)"}
    assert last in reply.displays
    said = kernel.run(
        "print([type(a) is Answer and a.rank for a in run], len(run.history['loss']))"
    )
    assert said.out == "[0, 1] 5\n"


def test_an_exception_over_there_points_at_the_line_of_the_cell(kernel: Kernel) -> None:
    cell, address, token, _ = launch(kernel, "2, 'fail'")
    with Joiner(address, token) as joiner:
        reply = kernel.finish(cell, timeout_s=90)
        joiner.end()
    assert reply.error == "ValueError"
    assert "in rank 1" in reply.traceback and 'raise ValueError("over there")' in reply.traceback
    assert re.search(r"Cell In\[\d+\], line 22", reply.traceback)


def test_the_interrupt_button_stops_both_machines(kernel: Kernel) -> None:
    cell, address, token, _ = launch(kernel, "10**6")
    with Joiner(address, token) as joiner:
        kernel.wait_for_output(cell, "under way", timeout_s=90)
        pids = family(kernel.pid) - forkservers(kernel.pid)
        kernel.interrupt()
        reply = kernel.finish(cell, timeout_s=30)
        assert reply.error == "RunInterrupted"
        code, out = joiner.end()
    assert (code, out.splitlines()[-1]) == (0, "The run was stopped.")
    assert wait_gone(pids) == set()
    said = kernel.run("import sys; print(len(sys.last_value.result.salvaged))")
    assert said.out == "1\n"


def test_the_interrupt_button_ends_the_wait_for_machines(kernel: Kernel) -> None:
    cell, _, _, _ = launch(kernel, "5")
    kernel.interrupt()
    reply = kernel.finish(cell, timeout_s=30)
    assert reply.error == "RunInterrupted"
    assert "stopped while it waited for machines" in reply.traceback
    assert kernel.run("print(1 + 1)").out == "2\n"

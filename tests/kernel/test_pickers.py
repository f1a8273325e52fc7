"""Pickers in a real kernel, moved by the messages that a front end sends."""

from __future__ import annotations

import time
from typing import Any

from tests.support.kernels import Kernel, Reply

VIEW = "application/vnd.jupyter.widget-view+json"
MAIN = """
from notebook_accel import Accelerator, LaunchPicker
def settings():
    accelerator = Accelerator()
    return (accelerator.num_processes, accelerator.mixed_precision,
            accelerator.gradient_accumulation_steps)
"""


def models(reply: Reply) -> dict[str, str]:
    """The comm of each described control that a cell opened."""
    opened = [content for kind, content in reply.messages if kind == "comm_open"]
    states = {content["comm_id"]: content["data"]["state"] for content in opened}
    return {state["description"]: comm for comm, state in states.items() if "description" in state}


def move(kernel: Kernel, comm: str, **state: Any) -> None:
    """Do what a front end does when a person moves a control."""
    client = kernel._client
    data = {"method": "update", "state": state, "buffer_paths": []}
    message = client.session.msg("comm_msg", {"comm_id": comm, "data": data})
    client.shell_channel.send(message)


def click(kernel: Kernel, comm: str) -> None:
    client = kernel._client
    data = {"method": "custom", "content": {"event": "click"}}
    client.shell_channel.send(client.session.msg("comm_msg", {"comm_id": comm, "data": data}))


def test_controls_moved_in_the_page_are_what_is_launched(kernel: Kernel) -> None:
    reply = kernel.run(MAIN + "picker = LaunchPicker(batch_size=8, device='cpu')\npicker")
    assert not reply.error, reply.traceback
    (shown,) = [content["data"] for kind, content in reply.messages if kind == "execute_result"]
    assert shown["text/plain"].startswith("LaunchPicker\n")
    assert shown[VIEW]["model_id"]
    controls = models(reply)
    move(kernel, controls["Processes"], value=2)
    move(kernel, controls["Precision"], index=1)
    move(kernel, controls["Accumulation"], value=3)
    reply = kernel.run("print(picker.code); run = notebook_launcher(settings, config=picker)")
    assert not reply.error, reply.traceback
    assert "Launching on 2 CPU processes" in reply.out
    assert 'num_processes=2, mixed_precision="bf16", gradient_accumulation_steps=3' in reply.out
    assert kernel.run("print(run.values)").out == f"{[(2, 'bf16', 3)] * 2}\n"


def test_the_choice_survives_running_the_cell_again(kernel: Kernel) -> None:
    cell = "again = LaunchPicker(name='again', device='cpu')\nagain"
    controls = models(kernel.run(MAIN + cell))
    move(kernel, controls["Processes"], value=4)
    assert kernel.run(cell + "; print(again.values['num_processes'])").out == "4\n"


def test_a_function_may_use_the_picker_itself(kernel: Kernel) -> None:
    reply = kernel.run(
        MAIN + "mine = LaunchPicker(name='mine', num_processes=2, device='cpu')\nmine.widget\n"
        "def main():\n    return Accelerator(**mine.accelerator_kwargs).mixed_precision\n"
        "for method in ('fork', 'forkserver'):\n"
        "    print(notebook_launcher(main, config=mine, start_method=method).values)"
    )
    assert not reply.error, reply.traceback
    assert reply.out.count("['no', 'no']") == 2


def test_a_worker_that_shows_it_shows_text(kernel: Kernel) -> None:
    reply = kernel.run(
        MAIN + "from IPython.display import display\nshown = LaunchPicker(name='shown')\n"
        "def main():\n    display(shown)\n"
        "notebook_launcher(main, num_processes=1, device='cpu');"
    )
    assert not reply.error, reply.traceback
    (shown,) = reply.displays
    assert shown["text/plain"].startswith("LaunchPicker\n")
    assert VIEW not in shown


def test_the_time_button_measures_while_the_kernel_stays_as_it_was(kernel: Kernel) -> None:
    cell = "timed = LaunchPicker(name='timed', device='cpu')\ntimed"
    controls = models(kernel.run(MAIN + cell))
    click(kernel, controls["Time the precisions"])
    deadline = time.monotonic() + 60
    while "speed (float32 is 1)" not in kernel.run("print(timed)").out:
        assert time.monotonic() < deadline, "no timing came"


def test_text_is_all_there_is_where_text_is_wished(kernel: Kernel) -> None:
    reply = kernel.run(MAIN + "os.environ['NOTEBOOK_ACCEL_UI'] = 'text'\nLaunchPicker(name='text')")
    kernel.run("del os.environ['NOTEBOOK_ACCEL_UI']")
    assert "comm_open" not in reply.kinds()
    (shown,) = [content["data"] for kind, content in reply.messages if kind == "execute_result"]
    assert list(shown) == ["text/plain"]

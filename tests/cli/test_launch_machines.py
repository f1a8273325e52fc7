"""Two machines on one box: network namespaces with a cable between them, an agent in each.

Without the right to make namespaces, both agents stand on this machine's loopback.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.cli.test_launch_training import LOOP, losses
from tests.support.launches import LAUNCH, clean_env, launch, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
TIMEOUT_S = 200.0


@dataclass(frozen=True)
class Machine:
    """What stands before a command so that it runs there, and the machine's address."""

    prefix: tuple[str, ...]
    address: str

    def begin(self, *words: str | Path, cwd: Path, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.prefix, *LAUNCH, *map(str, words)],
            cwd=cwd,
            env=clean_env(**more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@contextlib.contextmanager
def two_namespaces() -> Iterator[list[Machine]]:
    names = [f"na{os.getpid()}{side}" for side in "ab"]
    cables = [f"v{os.getpid()}{side}" for side in "ab"]
    machines = [
        Machine(("ip", "netns", "exec", name), f"10.79.0.{number}")
        for number, name in enumerate(names, start=1)
    ]
    with contextlib.ExitStack() as stack:
        for name in names:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
        ip("link", "add", cables[0], "netns", names[0], "type", "veth", "peer", "name", cables[1],
           "netns", names[1])  # fmt: skip
        for name, cable, machine in zip(names, cables, machines, strict=True):
            ip("-n", name, "addr", "add", f"{machine.address}/24", "dev", cable)
            ip("-n", name, "link", "set", cable, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield machines


@pytest.fixture(scope="module")
def machines() -> Iterator[list[Machine]]:
    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(two_namespaces())
        except (OSError, subprocess.CalledProcessError):  # no ip here, or no right to do this
            found = [Machine((), "127.0.0.1")] * 2
        yield found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ends(*running: subprocess.Popen[str]) -> list[tuple[int, str, str]]:
    try:
        said = [one.communicate(timeout=TIMEOUT_S) for one in running]
    finally:
        for one in running:
            one.kill()
            one.wait()
    return [(one.returncode, *texts) for one, texts in zip(running, said, strict=True)]


def test_the_usual_command_line_without_a_port_works_as_it_stands(
    machines: list[Machine], tmp_path: Path
) -> None:
    if not machines[0].prefix:
        pytest.skip("the fixed port of this machine may be in use: needs root and ip netns")
    script = tmp_path / "script.py"
    script.write_text(LOOP)
    alone = launch("--cpu", script)
    words = ["--num_processes", "2", "--num_machines", "2", "--main_process_ip"]
    words += [machines[0].address]
    running = [
        machine.begin("--multi_gpu", *words, "--machine_rank", str(rank), script, cwd=tmp_path)
        for rank, machine in enumerate(machines)
    ]
    (code, said, notes), (other_code, other_said, _) = ends(*running)
    if "no GPU here" not in notes:
        pytest.skip("this machine has GPUs")
    assert (code, other_code) == (0, 0), notes
    assert "machine 0 of 2" in notes
    assert other_said == ""
    done = subprocess.CompletedProcess("", code, said, notes)
    assert losses(done, 2) == pytest.approx(losses(alone, 1), rel=1e-4)


def test_a_port_in_use_on_the_first_of_several_machines_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    with socket.socket() as busy:
        busy.bind(("", 0))
        busy.listen()
        port = str(busy.getsockname()[1])
        words = ["--cpu", "--num_processes", "2", "--num_machines", "2", "--machine_rank", "0"]
        words += ["--main_process_ip", "127.0.0.1", "--main_process_port", port, "script.py"]
        done = launch(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert f"port {port} of this machine" in done.stderr and "is in use" in done.stderr


@pytest.mark.parametrize(
    ("rank", "why"), [("0", "1/2 clients joined"), ("1", "timed out after 3000ms")]
)
def test_machines_that_do_not_come_are_told_in_three_lines(
    tmp_path: Path, rank: str, why: str
) -> None:
    (tmp_path / "script.py").write_text("")
    words = ["--cpu", "--num_machines", "2", "--num_processes", "2", "--machine_rank", rank]
    words += ["--main_process_ip", "127.0.0.1", "--main_process_port", str(free_port())]
    done = launch(*words, "--rdzv_conf", "timeout=3", "script.py", cwd=tmp_path)
    assert done.returncode == 1
    _, what, reason, do = done.stderr.splitlines()[-4:]
    assert what.endswith("the machines did not find each other")
    assert why in reason and "127.0.0.1:" in do


def test_two_agents_on_loopback_are_two_machines(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os\nfrom notebook_accel import Accelerator\naccelerator = Accelerator()\n"
        "print(accelerator.process_index, accelerator.num_processes, os.environ['GROUP_RANK'])"
    )
    port = str(free_port())
    here = Machine((), "127.0.0.1")
    words = ["--cpu", "--num_processes", "2", "--num_machines", "2", "--main_process_ip"]
    words += ["127.0.0.1", "--main_process_port", port, "--machine_rank"]
    running = [here.begin(*words, str(rank), "script.py", cwd=tmp_path) for rank in range(2)]
    first, second = ends(*running)
    assert first[:2] == (0, "0 2 0\n"), first
    assert second[:2] == (0, "1 2 1\n"), second


def test_when_an_agent_is_killed_the_others_go_on_from_the_last_checkpoint(
    machines: list[Machine], tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(GOES_ON)
    words = ["--cpu", "--nnodes", "1:2", "--nproc_per_node", "1", "--max_restarts", "3"]
    words += ["--rdzv_backend", "c10d", "--rdzv_endpoint", f"{machines[0].address}:{free_port()}"]
    words += ["--rdzv_id", "lost"]
    patience = "last_call_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=3"
    words += ["--rdzv_conf", patience, "script.py", "20"]
    running = [machine.begin(*words, cwd=tmp_path) for machine in machines]
    try:
        steps = tmp_path / "steps"
        wait_for(lambda: steps.exists() and len(steps.read_text().splitlines()) > 3, 120)
        lost = psutil.Process(running[1].pid)
        ranks = lost.children(recursive=True)
        assert ranks
        lost.send_signal(signal.SIGKILL)
        wait_for(lambda: not any(one.is_running() and one.status() != "zombie" for one in ranks))
    except AssertionError as error:
        for one in running:
            one.terminate()
        raise AssertionError(f"{error}: {ends(*running)}") from error
    (code, said, notes), _ = ends(*running)
    assert code == 0, notes
    assert "launch: restart 1 of 3, world size 1" in notes
    first, again = [line.split() for line in said.splitlines() if line.startswith("from")]
    assert first == ["from", "0", "world", "2"]
    assert again[2:] == ["world", "1"] and int(again[1]) >= 3
    seen = [tuple(map(int, line.split())) for line in steps.read_text().splitlines()]
    assert {step for step, _ in seen} == set(range(1, 21))
    assert {world for step, world in seen if step > int(again[1]) + 1} == {1}


GOES_ON = """
import sys, time
import torch
from notebook_accel import Accelerator

class Count:
    value = 0
    def state_dict(self):
        return {"value": self.value}
    def load_state_dict(self, state):
        self.value = state["value"]

accelerator = Accelerator()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
count = Count()
accelerator.register_for_checkpointing(count)
import os
if os.path.exists("state"):
    accelerator.load_state("state")
accelerator.print("from", count.value, "world", accelerator.num_processes)
while count.value < int(sys.argv[1]):
    optimizer.zero_grad()
    accelerator.backward(model(torch.ones(4, 2)).square().mean())
    optimizer.step()
    count.value += 1
    accelerator.save_state("state")
    if accelerator.is_main_process:
        print(count.value, accelerator.num_processes, file=open("steps", "a"))
    time.sleep(0.2)
"""

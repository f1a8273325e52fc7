"""Two machines with a network between them: two network namespaces, joined by a cable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machines import Joiner, Script

pytestmark = pytest.mark.timeout(240)
HERE, THERE = "10.77.83.1", "10.77.83.2"
WAIT_S = 90.0

NOTEBOOK = """
import socket, sys, time
import torch
from torch import nn
from notebook_accel import Accelerator, notebook_launcher

def main(num_steps):
    accelerator = Accelerator()
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(num_steps):
        loss = (model(torch.ones(2, 4)) - accelerator.process_index).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if num_steps > 100:
            time.sleep(0.02)
            if step == 10:
                print("under way")
    return accelerator.process_index, {ADDRESS}

run = notebook_launcher(
    main, (int(sys.argv[1]),), 2, num_nodes=2, device="cpu", join=True,
    master_addr="10.77.83.1", trusted_network=True,
)
print("values", list(run), len(run.history["loss"]))
""".replace("{ADDRESS}", "open('/proc/net/fib_trie').read().count('10.77.83.2\\n') > 0")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)


@pytest.fixture
def networks() -> Iterator[tuple[str, str]]:
    """Two namespaces whose only way to each other is a pair of virtual interfaces."""
    if sys.platform != "linux" or shutil.which("ip") is None:
        pytest.skip("network namespaces need Linux and the ip command")
    mark = os.getpid()
    here, there = names = f"nba{mark}", f"nbb{mark}"
    try:
        ip("netns", "add", here)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made here: {error.stderr.decode().strip()}")
    try:
        ip("netns", "add", there)
        ends = f"va{mark}", f"vb{mark}"
        ip("link", "add", ends[0], "netns", here, "type", "veth", "peer", ends[1], "netns", there)
        for name, end, address in zip(names, ends, (HERE, THERE), strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=30)


def notebook_in(network: str, folder: Path, num_steps: int) -> Script:
    """Launch in a namespace, to be joined."""
    path = folder / "notebook.py"
    path.write_text(NOTEBOOK)
    return Script(path, str(num_steps), inside=("ip", "netns", "exec", network))


def joiner_in(network: str, notebook: Script) -> Joiner:
    """Join it from another namespace, by the line that it shows."""
    option = notebook.match(r"notebook-accel join \S+ (\S+)\n").group(1)
    return notebook.joiner(option, inside=("ip", "netns", "exec", network))


@pytest.mark.slow
def test_a_machine_joins_over_a_network(networks: tuple[str, str], tmp_path: Path) -> None:
    here, there = networks
    with notebook_in(here, tmp_path, 5) as notebook, joiner_in(there, notebook) as joiner:
        found = notebook.match(r"values (.*)\n").group(1)
        assert joiner.end()[0] == 0
    assert found == "[(0, False), (1, False), (2, True), (3, True)] 5"
    assert f", {THERE}) has joined: 2 CPU processes" in notebook.said


@pytest.mark.slow
def test_a_machine_that_loses_its_power_ends_the_run(
    networks: tuple[str, str], tmp_path: Path
) -> None:
    here, there = networks
    with notebook_in(here, tmp_path, 10**6) as notebook, joiner_in(there, notebook) as joiner:
        notebook.match("under way")
        listed = subprocess.run(["ip", "netns", "pids", there], capture_output=True, timeout=30)
        for pid in listed.stdout.split():
            os.kill(int(pid), 9)
        joiner.end()
        lost = notebook.match(r"WorkerDied: machine 1 \((.*)\) was lost, after step \d+")
    assert lost.group(1).endswith(THERE)


@pytest.mark.slow
def test_a_cable_that_is_pulled_ends_the_run_on_both_sides(
    networks: tuple[str, str], tmp_path: Path
) -> None:
    """Nobody says goodbye here: the system finds out by itself within 20 seconds."""
    here, there = networks
    with notebook_in(here, tmp_path, 10**6) as notebook, joiner_in(there, notebook) as joiner:
        notebook.match("under way")
        ip("-n", there, "link", "set", f"vb{os.getpid()}", "down")
        notebook.match(r"WorkerDied: machine 1 \((.*)\) was lost, after step \d+")
        code, out = joiner.end()
    assert code == 1
    assert "the notebook is gone, and the ranks of this machine with it" in out

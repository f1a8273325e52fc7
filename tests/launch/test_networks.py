"""Two machines with a network between them: two network namespaces, joined by a cable."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.machines import ROOT, Joiner

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


class Notebook:
    """A launch in a namespace, waiting to be joined."""

    def __init__(self, network: str, script: Path, num_steps: int) -> None:
        script.write_text(NOTEBOOK)
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", network, sys.executable, "-u", str(script), str(num_steps)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "NOTEBOOK_ACCEL_UI": "off"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.said = ""

    def __enter__(self) -> Notebook:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for one in psutil.Process(self.process.pid).children(recursive=True):
            one.kill()
        self.process.kill()
        self.process.communicate()

    def match(self, pattern: str) -> re.Match[str]:
        """Wait until it has written what ``pattern`` finds."""
        deadline = time.monotonic() + WAIT_S
        assert self.process.stdout is not None
        while time.monotonic() < deadline:
            self.said += (self.process.stdout.read() or b"").decode()
            if found := re.search(pattern, self.said):
                return found
            time.sleep(0.05)
        raise TimeoutError(f"{pattern!r} was not written: {self.said}")

    def joiner(self, network: str) -> Joiner:
        """Join it from another namespace."""
        line = self.match(r"notebook-accel join (\S+) (--trusted-network)\n")
        token = self.match(r"token: (\S+)").group(1)
        inside = ("ip", "netns", "exec", network)
        return Joiner(line.group(1), token, line.group(2), inside=inside)


@pytest.mark.slow
def test_a_machine_joins_over_a_network(networks: tuple[str, str], tmp_path: Path) -> None:
    here, there = networks
    with Notebook(here, tmp_path / "a.py", 5) as notebook, notebook.joiner(there) as joiner:
        found = notebook.match(r"values (.*)\n").group(1)
        assert joiner.end()[0] == 0
    assert found == "[(0, False), (1, False), (2, True), (3, True)] 5"
    assert f", {THERE}) has joined: 2 CPU processes" in notebook.said


@pytest.mark.slow
def test_a_machine_that_loses_its_power_ends_the_run(
    networks: tuple[str, str], tmp_path: Path
) -> None:
    here, there = networks
    with Notebook(here, tmp_path / "a.py", 10**6) as notebook, notebook.joiner(there) as joiner:
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
    with Notebook(here, tmp_path / "a.py", 10**6) as notebook, notebook.joiner(there) as joiner:
        notebook.match("under way")
        ip("-n", there, "link", "set", f"vb{os.getpid()}", "down")
        notebook.match(r"WorkerDied: machine 1 \((.*)\) was lost, after step \d+")
        code, out = joiner.end()
    assert code == 1
    assert "the notebook is gone, and the ranks of this machine with it" in out

"""What the cells of these tests share: imports, a dataset, and the meeting with the test."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from tests.support.kernels import Kernel, Reply, family, forkservers, wait_gone

PRELUDE = '''
import ctypes, functools, os, signal, subprocess, sys, threading, time
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset
from notebook_accel import notebook_launcher, RunInterrupted

class Numbers(Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        return index

def rank():
    return int(os.environ["RANK"])

def meet(folder):
    """Start a loader's worker, tell the test all process ids, wait for its sign to go on."""
    batches = iter(DataLoader(Numbers(), num_workers=1, persistent_workers=True))
    next(batches)
    pids = [os.getpid(), *(worker.pid for worker in batches._workers)]
    with open(f"{folder}/new{rank()}", "w") as file:
        file.write(" ".join(map(str, pids)))
    os.rename(f"{folder}/new{rank()}", f"{folder}/pids{rank()}")
    deadline = time.monotonic() + 60
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.005)
        assert time.monotonic() < deadline, "the test did not say go"
    return batches

def connect():
    dist.init_process_group("gloo")
    dist.barrier()

def tens():
    connect()
    total = torch.tensor([10 * rank()])
    dist.all_reduce(total)
    return total.item()
'''


def start_meeting(
    kernel: Kernel,
    body: str,
    folder: Path,
    method: str = "fork",
    num_ranks: int = 2,
    more: str = "",
    stop_on_error: bool = False,
) -> tuple[str, set[int]]:
    """Start a launch whose ranks meet and then run ``body``; give the cell and all pids.

    ``body`` sees ``batches``, a running iterator over a loader with one worker. The pids are those
    of ranks, their loader workers and the guard, without an idle forkserver.
    """
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    cell = kernel.start(
        f"def train():\n    batches = meet({str(folder)!r})\n{lines}\n"
        f"run = notebook_launcher(train, num_processes={num_ranks}, "
        f"start_method={method!r}{more})",
        stop_on_error,
    )
    pids: set[int] = set()
    for number in range(num_ranks):
        pids |= set(map(int, wait_for_file(folder / f"pids{number}").split()))
    assert len(pids) == 2 * num_ranks
    everybody = family(kernel.pid) - forkservers(kernel.pid)
    assert pids < everybody, "there is a guard beside ranks and loader workers"
    return cell, everybody


def go(folder: Path) -> None:
    """Let the meeting go on."""
    (folder / "go").touch()


def wait_for_file(path: Path, timeout_s: float = 30.0) -> str:
    """Wait until ``path`` exists and give its text."""
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not come within {timeout_s} s"
        time.sleep(0.01)
    return path.read_text()


def check_aftermath(kernel: Kernel, pids: Iterable[int], method: str = "fork") -> None:
    """Nothing is left, the kernel answers, the next launch works."""
    assert wait_gone(set(pids)) == set()
    assert kernel.run("print(6 * 7)").out == "42\n"
    assert family(kernel.pid) - forkservers(kernel.pid) == set()
    reply = kernel.run(launch("tens", method, "; print(run.values)"))
    assert "[10, 10]" in reply.out, reply.messages


def launch(function: str, method: str = "auto", then: str = "", num_processes: int = 2) -> str:
    """Write the cell that launches ``function``."""
    return (
        f"run = notebook_launcher({function}, num_processes={num_processes}, "
        f"start_method={method!r}){then}"
    )


def said(reply: Reply) -> str:
    """Everything a cell shows as text."""
    return reply.out + reply.err + reply.traceback

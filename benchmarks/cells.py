"""What each way to launch looks like in a notebook: one cell that prepares, one that launches.

Every launching cell runs the same work on ``n`` ranks: join the process group, Linear 4-16-2 under
DDP, one SGD step. Each rank leaves a file ``<folder>/<rank>.json`` with the time of its first line
and of its first finished optimizer step, and its memory when it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

WORK = """
import json, os, time
import torch

def mark(folder, rank, line, step, weigh):
    facts = {"line": line, "step": step}
    if weigh:
        import psutil
        memory = psutil.Process().memory_full_info()
        facts |= {"pss": memory.pss, "uss": memory.uss}
    with open(os.path.join(folder, f"{rank}.json.part"), "w") as file:
        json.dump(facts, file)
    os.rename(file.name, file.name.removesuffix(".part"))

def parts():
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)
"""

ACCELERATOR_WORK = """
def work(folder, weigh):
    line = time.time()
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(*parts())
    accelerator.backward(model(torch.ones(32, 4)).sum())
    optimizer.step()
    mark(folder, accelerator.process_index, line, time.time(), weigh)
"""

FLOOR = """
import tempfile
start = time.time()
import torch._dynamo
print("import:", time.time() - start)
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def work(folder, weigh, rank, size, store):
    line = time.time()
    torch.set_num_threads(max(1, os.cpu_count() // size))
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    model, optimizer = parts()
    model = DistributedDataParallel(model)
    model(torch.ones(32, 4)).sum().backward()
    optimizer.step()
    mark(folder, rank, line, time.time(), weigh)

def launch(folder, weigh, size):
    with tempfile.TemporaryDirectory() as room:
        pids = []
        for rank in range(size):
            pid = os.fork()
            if not pid:
                try:
                    work(folder, weigh, rank, size, f"{room}/store")
                finally:
                    os._exit(0)
            pids.append(pid)
        for pid in pids:
            os.waitpid(pid, 0)
"""

ACCELERATE = """
import socket
from accelerate import Accelerator, notebook_launcher

def launch(folder, weigh, size):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    notebook_launcher(work, (folder, weigh), num_processes=size, use_port=port)
"""

FABRIC = """
from lightning_fabric import Fabric

def work(fabric, folder, weigh):
    line = time.time()
    model, optimizer = fabric.setup(*parts())
    fabric.backward(model(torch.ones(32, 4)).sum())
    optimizer.step()
    mark(folder, fabric.global_rank, line, time.time(), weigh)

def launch(folder, weigh, size):
    fabric = Fabric(accelerator="cpu", devices=size, strategy="ddp_notebook")
    fabric.launch(work, folder, weigh)
"""

OURS = """
from notebook_accel import Accelerator, notebook_launcher

def launch(folder, weigh, size):
    notebook_launcher(
        work, (folder, weigh), num_processes=size, device="cpu", start_method="METHOD"
    )
"""


@dataclass(frozen=True)
class Method:
    """One way to launch: its name in the table, the cell before, packages beyond our own."""

    name: str
    prepare: str
    needs: str = ""


METHODS = {
    "floor": Method("os.fork + gloo (floor)", WORK + FLOOR),
    "fork": Method("ours, fork", WORK + OURS.replace("METHOD", "fork") + ACCELERATOR_WORK),
    "forkserver": Method(
        "ours, forkserver", WORK + OURS.replace("METHOD", "forkserver") + ACCELERATOR_WORK
    ),
    "accelerate": Method(
        "accelerate notebook_launcher", WORK + ACCELERATE + ACCELERATOR_WORK, "accelerate"
    ),
    "fabric": Method("Fabric ddp_notebook", WORK + FABRIC, "lightning_fabric"),
}


def launching_cell(folder: str, weigh: bool, size: int) -> str:
    """The cell whose first line starts the clock; its last line prints both times."""
    return (
        "import time; start = time.time()\n"
        f"launch({folder!r}, {weigh}, {size})\n"
        "print('times:', repr(start), repr(time.time()))"
    )

"""Models in pieces across two machines: two network namespaces, joined by a cable."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from notebook_accel import notebook_launcher
from tests.launch.test_networks import joiner_in, networks
from tests.support.machines import Script

__all__ = ["networks"]  # a fixture
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

TRAINING = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from notebook_accel import DDP, FSDP, Accelerator, TensorParallel

PLAN = {"0": "colwise", "2": "rowwise"}
WISHES = {
    "ddp": DDP(),
    "fsdp": FSDP(auto_wrap_policy="size_based_wrap", min_num_params=10),
    "a copy on each machine": FSDP(replicas="machines"),
    "tensor": TensorParallel(size=2, plan=PLAN),
}

def wish_of(name):
    if name == "zero 2":
        from notebook_accel import DeepSpeed
        return DeepSpeed(zero_stage=2)
    return WISHES[name]

def train(name):
    accelerator = Accelerator(cpu=True, strategy=wish_of(name), split_batches=True)
    torch.manual_seed(0)
    x = torch.randn(32, 4)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(x, x[:, :1].tanh()), batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    found = []
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        norm = accelerator.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        found += [accelerator.reduce(loss.detach(), "mean").item(), float(norm)]
    state = accelerator.get_state_dict(model)
    return [*found, *(value for one in state.values() for value in one.flatten().tolist())]

def main(names):
    return {name: train(name) for name in names}
"""
LAUNCH = """
import json, sys
from notebook_accel import notebook_launcher
run = notebook_launcher(
    main, (sys.argv[2:],), int(sys.argv[1]), num_nodes=2, device="cpu", join=True,
    master_addr="10.77.83.1", trusted_network=True,
)
print("found:" + json.dumps(run[0]) + ":", flush=True)
"""


@pytest.mark.parametrize(
    ("num_ranks", "names"),
    [
        (1, ["ddp", "fsdp", "tensor", "zero 2"]),  # layers divided across the cable
        (2, ["fsdp", "a copy on each machine", "tensor"]),  # within a machine, shards across
    ],
    ids=["one rank on each", "two ranks on each"],
)
def test_two_machines_train_as_one_does(
    networks: tuple[str, str], tmp_path: Path, num_ranks: int, names: list[str]
) -> None:
    if importlib.util.find_spec("deepspeed") is None:
        names = [name for name in names if name != "zero 2"]
    here, there = networks
    path = tmp_path / "notebook.py"
    path.write_text(TRAINING + LAUNCH)
    inside = ("ip", "netns", "exec", here)
    with (
        Script(path, str(num_ranks), *names, inside=inside) as notebook,
        joiner_in(there, notebook) as joiner,
    ):
        found = json.loads(notebook.match(r"found:(.*):\n").group(1))
        assert joiner.end()[0] == 0
    cell: dict[str, object] = {"__name__": "__main__"}
    exec(TRAINING, cell)
    one_machine = notebook_launcher(cell["main"], (names,), 2 * num_ranks, device="cpu")[0]
    assert list(found) == names
    for name in names:
        assert found[name] == pytest.approx(one_machine[name], abs=1e-6), name
        assert found[name] == pytest.approx(one_machine[names[0]], abs=1e-5), name

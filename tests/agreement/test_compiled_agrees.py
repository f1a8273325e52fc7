"""A compiled model trains as the same model does uncompiled, under every strategy, and under its
own names; blocks that are alike are compiled once.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_accel import Accelerator, notebook_launcher
from notebook_accel.config.dynamo import TorchDynamoPlugin
from notebook_accel.config.wishes import DDP, FSDP, Pipeline, Strategy, TensorParallel
from notebook_accel.errors import ConfigError
from tests.support.nets import PLAN, Net

WAYS: dict[str, tuple[Strategy | None, dict[str, Any]]] = {
    "ddp": (DDP(), {}),
    "ddp in one graph": (DDP(), {"fullgraph": True}),
    "ddp, blocks": (DDP(), {"use_regional_compilation": True, "fullgraph": True}),
    "fsdp": (FSDP(), {}),
    "fsdp, blocks": (FSDP(), {"use_regional_compilation": True, "fullgraph": True}),
    "fsdp recomputing, blocks": (
        FSDP(activation_checkpointing=True),
        {"use_regional_compilation": True},
    ),
    "tensor, blocks": (TensorParallel(size=2, plan=PLAN), {"use_regional_compilation": True}),
    "pipeline": (Pipeline(stages=2), {}),
    "interleaved pipeline": (
        Pipeline(stages=4, stages_per_rank=2),
        {"fullgraph": True},
    ),
}
PRECISIONS = {"no": 1e-6, "bf16": 3e-2}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def train(strategy: Strategy | None, precision: str, **how: Any) -> dict[str, Any]:
    """Train with or without a compiler; give losses, names of the state, and how often it ran."""
    torch._dynamo.reset()
    num_graphs = 0

    def count(graph: Any, inputs: Any, **given: Any) -> Any:
        nonlocal num_graphs
        num_graphs += 1
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    plugin = TorchDynamoPlugin(backend=count, **how) if how.pop("compiles", True) else None
    accelerator = Accelerator(
        cpu=True,
        mixed_precision=precision,
        strategy=strategy,
        dynamo_plugin=plugin,
        gradient_accumulation_steps=2,
    )
    torch.manual_seed(0)
    x = torch.randn(12, 4)
    y = (x[:, :1] + x[:, 1:2]).tanh()
    model = Net(depth=4)
    batch_size = 4 // accelerator._engine.layout.data_size
    loader = DataLoader(TensorDataset(x, y), batch_size=batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            if isinstance(strategy, Pipeline):
                batch = (inputs, targets)
                loss = accelerator.forward_backward(model, batch, nn.functional.mse_loss)
            else:
                loss = nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
            losses.append(accelerator.reduce(loss, "mean").item())
            if accelerator.sync_gradients:
                losses.append(accelerator.clip_grad_norm_(model.parameters(), 0.5).item())
            optimizer.step()
    graphs = num_graphs
    state = accelerator.get_state_dict(model)
    model.eval()
    with torch.no_grad():
        losses.append(model(x).float().square().mean().item())
    return {"losses": losses, "names": list(state), "graphs": graphs}


def trains_compiled_and_not() -> dict[Any, dict[str, Any]]:
    if Accelerator(cpu=True).num_processes == 1:
        ways: dict[str, Any] = {
            name: (None, how) for name, (_, how) in WAYS.items() if "ddp" in name
        }
    else:
        ways = WAYS
    found = {}
    for (name, (strategy, how)), precision in itertools.product(ways.items(), PRECISIONS):
        if precision == "no" or name in ("ddp", "fsdp, blocks"):
            found[name, precision] = train(strategy, precision, **how)
            found[name, precision, "plain"] = train(strategy, precision, compiles=False)
    return found


@pytest.fixture(scope="module")
def runs() -> dict[int, dict[Any, dict[str, Any]]]:
    return {
        size: notebook_launcher(trains_compiled_and_not, (), size, device="cpu")[0]
        for size in (1, 2)
    }


def test_a_compiled_model_trains_as_it_does_uncompiled(runs: dict) -> None:
    names = [name for name, _ in Net(depth=4).named_parameters()]
    for size, found in runs.items():
        compiled = [key for key in found if len(key) == 2]
        assert len(compiled) == (4 if size == 1 else 11)
        for key in compiled:
            tolerance = PRECISIONS[key[1]]
            expected = pytest.approx(found[(*key, "plain")]["losses"], abs=tolerance, rel=tolerance)
            assert found[key]["losses"] == expected, (size, key)
            assert found[key]["graphs"] > 0 and not found[(*key, "plain")]["graphs"], (size, key)
            assert found[key]["names"] == names, (size, key)


def test_blocks_that_are_alike_are_compiled_once(runs: dict) -> None:
    for name in ("ddp, blocks", "fsdp, blocks", "tensor, blocks"):
        assert runs[2][name, "no"]["graphs"] == 1, name
    assert runs[1]["ddp, blocks", "no"]["graphs"] == 1
    assert runs[1]["ddp in one graph", "no"]["graphs"] == 1


def asks_for_one_graph() -> str:
    try:
        train(FSDP(), "no", fullgraph=True)
    except ConfigError as error:
        return str(error)
    return ""


def test_one_graph_of_a_sharded_model_is_refused_on_every_rank() -> None:
    run = notebook_launcher(asks_for_one_graph, (), 2, device="cpu")
    assert run[0] == run[1]
    assert "fullgraph=True for FSDPNet, which is sharded" in run[0]
    assert "in no graph" in run[0]
    assert "use_regional_compilation=True" in run[0]


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor_trains_with_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    def both() -> list[Any]:
        torch.manual_seed(0)
        found = []
        for backend in (None, "inductor"):
            accelerator = Accelerator(cpu=True, dynamo_backend=backend, strategy=FSDP())
            torch.manual_seed(0)
            model = Net(depth=4)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model, optimizer = accelerator.prepare(model, optimizer)
            for _ in range(2):
                loss = model(torch.ones(2, 4)).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            found.append(loss.item())
        return found

    plain, compiled = notebook_launcher(both, (), 2, device="cpu")[0]
    assert compiled == pytest.approx(plain, abs=1e-6)

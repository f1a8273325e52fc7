"""Megatron's degrees equal the single device, and so does what a file or options ask for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from notebook_accel import (
    Accelerator,
    Megatron,
    ParallelismConfig,
    RunConfig,
    SingleDevice,
    notebook_launcher,
)
from notebook_accel.utils import MegatronLMPlugin, TorchTensorParallelPlugin
from tests.agreement.test_strategies_agree import train
from tests.support.nets import PLAN, Net

MAIN = "import sys; from notebook_accel.cli.main import main; sys.exit(main())"
CLIP = 0.1
DEGREES = {
    "tensor": Megatron(tp_degree=2, gradient_clipping=CLIP, plan=PLAN),
    "stages": Megatron(pp_degree=2, num_micro_batches=2, gradient_clipping=CLIP),
    "optimizer in parts": Megatron(use_distributed_optimizer=True, gradient_clipping=CLIP),
    "recomputing": Megatron(pp_degree=2, recompute_activations=True, gradient_clipping=CLIP),
    "stages, optimizer in parts": Megatron(
        pp_degree=2, use_distributed_optimizer=True, gradient_clipping=CLIP
    ),
    "three axes": Megatron(tp_degree=2, pp_degree=2, gradient_clipping=CLIP, plan=PLAN),
}
SIZES = {
    2: ("tensor", "stages", "optimizer in parts", "recomputing"),
    4: ("tensor", "stages, optimizer in parts", "three axes"),
}
SETTINGS = [(1, "no", 24), (2, "fp16", 24)]


def alone() -> list[list[float]]:
    """Clip in the loop."""
    return [train(SingleDevice(), steps, word, CLIP, rows) for steps, word, rows in SETTINGS]


def by_degrees(names: tuple[str, ...]) -> dict[tuple, list[float]]:
    """Leave clipping to the wish: the loop's bound is never met."""
    return {
        (name, i): train(DEGREES[name], steps, word, 1e9, rows)
        for name in names
        for i, (steps, word, rows) in enumerate(SETTINGS)
    }


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("size", SIZES)
def test_degrees_equal_one_device_and_clip_by_themselves(size: int) -> None:
    expected = notebook_launcher(alone, (), 1, device="cpu")[0]
    run = notebook_launcher(by_degrees, (SIZES[size],), size, device="cpu", timeout_s=400)
    for (name, i), numbers in run[0].items():
        tolerance = 5e-3 if SETTINGS[i][1] == "fp16" else 1e-5
        assert numbers == pytest.approx(expected[i], abs=tolerance, rel=tolerance), (name, i)


def learns(plugin: MegatronLMPlugin | None = None) -> list[float]:
    """One loop for all; gradients are large, and clipped without the loop's doing."""
    accelerator = Accelerator(cpu=True, megatron_lm_plugin=plugin)
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer = accelerator.prepare(model, optimizer)
    x = torch.linspace(-9, 9, 32).view(8, 4)
    losses = []
    for _ in range(3):
        batch = (x, 30 * x[:, :1])
        losses.append(accelerator.forward_backward(model, batch, nn.functional.mse_loss).item())
        optimizer.step()
        optimizer.zero_grad()
    return [*losses, accelerator.pipeline_parallel_rank]


def test_a_configuration_and_a_plugin_ask_for_the_same() -> None:
    one = RunConfig(strategy="megatron_lm", num_processes=1, device="cpu")
    expected = notebook_launcher(learns, config=one)[0][:3]
    assert expected[2] < expected[0]
    two = one.but(num_processes=2, megatron_lm_pp_degree=2, megatron_lm_num_micro_batches=2)
    by_config = notebook_launcher(learns, config=two)
    by_plugin = notebook_launcher(learns, (MegatronLMPlugin(pp_degree=2),), 2, device="cpu")
    for run in (by_config, by_plugin):
        assert [told[3] for told in run] == [0, 1]
        for told in run:
            assert told[:3] == pytest.approx(expected, rel=1e-5)


def lies(**plugins: Any) -> list[Any]:
    accelerator = Accelerator(cpu=True, **plugins)
    model = Net()
    model.tp_plan = PLAN
    model = accelerator.prepare(model)
    loss = accelerator.forward_backward(model, (torch.ones(2, 4), torch.ones(2, 1)), nn.MSELoss())
    ranks = (accelerator.pipeline_parallel_rank, accelerator.tensor_parallel_rank)
    return [ranks, loss.isfinite().item(), str(accelerator.distributed_type)]


@pytest.mark.parametrize(
    ("plugins", "kind"),
    [
        ({"torch_tp_plugin": TorchTensorParallelPlugin(tp_size=2)}, "FSDP"),
        ({"parallelism_config": ParallelismConfig(pp_size=2)}, "MULTI_CPU"),
    ],
)
def test_other_plugins_ask_for_the_same_axes(plugins: dict, kind: str) -> None:
    run = notebook_launcher(lies, (), 2, device="cpu", kwargs=plugins)
    axis = 1 if "torch_tp_plugin" in plugins else 0
    assert [told[0][axis] for told in run] == [0, 1]
    assert [told[1:] for told in run] == [[True, kind]] * 2


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_options_of_a_launch_choose_the_degrees(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from tests.agreement.test_megatron_agrees import learns\nprint('told', learns())\n"
    )
    options = ["--cpu", "--use_megatron_lm", "--megatron_lm_pp_degree", "2", "--num_processes", "2"]
    run = subprocess.run(
        [sys.executable, "-c", MAIN, "launch", *options, str(script)],
        cwd=Path(__file__).parents[2],
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert run.stdout.count("told [") == 2, run.stdout + run.stderr
    assert "tp_degree=1 x pp_degree=2 run on torch's own engines (pipeline)" in run.stdout

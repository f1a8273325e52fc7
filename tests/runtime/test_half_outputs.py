"""In which dtype a prepared model answers under mixed precision, and how a person changes it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from notebook_accel import Accelerator, notebook_launcher

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def dtypes(accelerator: Accelerator, model: torch.nn.Module) -> list[torch.dtype]:
    x = torch.ones(1, 4)
    found = [model.train()(x).dtype, model.eval()(x).dtype]
    with torch.inference_mode():
        found.append(model(x).dtype)
    return found


def answers(precision: str) -> dict[str, Any]:
    accelerator = Accelerator(mixed_precision=precision)
    model, other = accelerator.prepare(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    said = {"at_first": dtypes(accelerator, model)}
    accelerator.upcast_outputs(model, False)
    said["half"] = dtypes(accelerator, model)
    said["copied"] = dtypes(accelerator, copy.deepcopy(accelerator.unwrap_model(model)))
    said["other"] = dtypes(accelerator, other)
    loss = model(torch.ones(1, 4)).sum()
    accelerator.backward(loss)
    said["loss"] = loss.dtype
    said["grad"] = accelerator.unwrap_model(model).weight.grad.dtype
    accelerator.upcast_outputs(model)
    said["again"] = dtypes(accelerator, model)
    bare = accelerator.unwrap_model(model, keep_fp32_wrapper=False)
    said["bare"] = [type(bare).__name__, bare(torch.ones(1, 4)).dtype]
    plain = torch.nn.Linear(4, 4)
    with accelerator.autocast():
        said["autocast"] = plain(torch.ones(1, 4)).dtype
    return said


@pytest.mark.parametrize("num_processes", [1, 2])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_outputs_are_float32_until_a_person_says_otherwise_for_a_model(
    precision: str, num_processes: int
) -> None:
    """MP02."""
    half = HALF[precision]
    for said in notebook_launcher(answers, (precision,), num_processes, device="cpu"):
        assert said["at_first"] == said["other"] == said["again"] == [torch.float32] * 3
        assert said["half"] == said["copied"] == [half] * 3
        assert (said["loss"], said["grad"]) == (half, torch.float32)
        assert said["bare"] == ["Linear", torch.float32]
        assert said["autocast"] == half


def test_switching_does_nothing_to_a_model_in_full_precision() -> None:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(torch.nn.Linear(4, 4))
    accelerator.upcast_outputs(model, False)
    assert dtypes(accelerator, model) == [torch.float32] * 3


def test_fp16_on_the_cpu_never_applies_an_infinite_gradient() -> None:
    """MP02: a real loss scaler skips the step, says so, and tries again with a smaller scale."""
    accelerator = Accelerator(mixed_precision="fp16", cpu=True)
    model = torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    skipped = []
    for factor in (float("inf"), 1.0):
        optimizer.zero_grad()
        accelerator.backward(model(torch.ones(1, 4)).sum() * factor)
        optimizer.step()
        skipped.append(optimizer.step_was_skipped)
    assert skipped == [True, False]
    assert torch.isfinite(model.weight).all()

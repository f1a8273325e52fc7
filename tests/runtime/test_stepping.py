"""What ``forward_backward`` is given is looked at before anything runs, under every strategy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from notebook_accel import Accelerator, notebook_launcher
from notebook_accel.config.wishes import DDP, Pipeline, Strategy
from notebook_accel.errors import RuntimeMisuse
from tests.support.nets import Net

X = torch.arange(16.0).view(4, 4) / 16
Y = torch.arange(4.0)[:, None]
mse = nn.functional.mse_loss

WRONG = {
    "dict": {"x": X, "y": Y},
    "tensor": X[:2],
    "triple": (X, Y, Y),
    "rows": (X, Y[:3]),
    "broadcast": (X, Y[:1]),
    "parts": ({"x": X}, {"y": Y, "z": Y[:2]}),
}
SAID = {
    "dict": "forward_backward() got a dict",
    "tensor": "forward_backward() got a Tensor",
    "triple": "got a batch of 3",
    "rows": "inputs of 4 rows and targets of 3",
    "broadcast": "inputs of 4 rows and targets of 1",
    "parts": "inputs of 4 rows and targets of 2 and 4",
}


def tries(strategy: Strategy) -> dict[str, str]:
    accelerator = Accelerator(cpu=True, strategy=strategy)
    model = accelerator.prepare(Net())
    told = {}
    for name, batch in WRONG.items():
        with pytest.raises(RuntimeMisuse) as error:
            accelerator.forward_backward(model, batch, mse)
        told[name] = str(error.value)
    accelerator.forward_backward(model, [X, Y], mse)  # as loaders give it
    accelerator.forward_backward(model, (X, torch.ones(())), lambda y, scale: (y * scale).mean())
    return told


@pytest.mark.parametrize("strategy", [DDP(), Pipeline()], ids=["ddp", "pipeline"])
def test_a_batch_that_is_no_pair_of_the_same_rows_is_refused(strategy: Strategy) -> None:
    for told in notebook_launcher(tries, (strategy,), 2, device="cpu", timeout_s=100):
        for name, said in SAID.items():
            assert said in told[name]
            assert "why:" in told[name]
            assert "do:" in told[name]


def steps(strategy: Strategy, loss_fn: Any) -> None:
    accelerator = Accelerator(cpu=True, strategy=strategy)
    accelerator.forward_backward(accelerator.prepare(Net()), (X, Y), loss_fn)


@pytest.mark.parametrize("strategy", [DDP(), Pipeline()], ids=["ddp", "pipeline"])
@pytest.mark.parametrize(
    ("loss_fn", "what"),
    [(lambda y, t: (y - t).square(), "numbers"), (lambda y, t: 1.0, "a float")],
    ids=["a loss a row", "no tensor"],
)
def test_a_loss_that_is_not_one_number_is_refused(
    strategy: Strategy, loss_fn: Any, what: str
) -> None:
    with pytest.raises(RuntimeMisuse, match=rf"gave .*{what}") as error:
        notebook_launcher(steps, (strategy, loss_fn), 2, device="cpu", timeout_s=100)
    assert "return the mean over rows" in str(error.value)

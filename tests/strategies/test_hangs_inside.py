"""Ranks that wait for ever in collectives of a model's own layers are told where, in seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from notebook_accel import (
    Accelerator,
    RanksStuck,
    SequenceParallel,
    TensorParallel,
    notebook_launcher,
)
from tests.agreement.test_sequence_agrees import Net as Attending
from tests.support.nets import PLAN, Net

pytestmark = pytest.mark.slow


def in_layers() -> None:
    accelerator = Accelerator(cpu=True, strategy=TensorParallel(2, PLAN))
    model = accelerator.prepare(Net())
    x = torch.ones(2, 4)
    model(x)
    if accelerator.is_main_process:
        model(x)
    accelerator.wait_for_everyone()


def in_attention() -> None:
    accelerator = Accelerator(cpu=True, strategy=SequenceParallel(2, cut="context"))
    model = accelerator.prepare(Attending())
    with accelerator.maybe_context_parallel([torch.zeros(2, 8)], [1]):
        x = torch.zeros(2, 4, dtype=torch.int64)
        model(x)
        if accelerator.is_main_process:
            model(x)
    accelerator.wait_for_everyone()


def in_a_function() -> None:
    from torch.distributed._functional_collectives import all_to_all_single_autograd

    accelerator = Accelerator(cpu=True)
    for rounds in range(2):
        if rounds == 0 or accelerator.is_main_process:
            sent = torch.ones(4, requires_grad=True)
            (all_to_all_single_autograd(sent, None, None, dist.group.WORLD) + 1).sum()
    accelerator.wait_for_everyone()


@pytest.mark.parametrize(
    ("stuck", "where"),
    [(in_layers, "rank 0 in all_"), (in_attention, "rank 0 in "), (in_a_function, "rank 0 in all")],
)
def test_a_hang_inside_a_model_is_told(stuck: Callable[[], Any], where: str) -> None:
    with pytest.raises(RanksStuck) as error:
        notebook_launcher(stuck, (), 2, device="cpu", timeout_s=100)
    assert where in error.value.what
    assert "rank 1 in wait_for_everyone" in error.value.what

"""A sharded model that a function returns comes back whole, whoever returned it."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from notebook_accel import Accelerator, notebook_launcher
from notebook_accel.config.wishes import DDP, FSDP, Strategy, TensorParallel
from notebook_accel.errors import LaunchError, RanksStuck, RuntimeMisuse
from notebook_accel.strategies.homecoming import HOME
from tests.support.nets import PLAN, Block, Net

WISHES: dict[str, Strategy] = {
    "fsdp": FSDP(),
    "fsdp recomputing": FSDP(activation_checkpointing=True),
    "tensor": TensorParallel(plan=PLAN),
}
INPUTS = torch.linspace(-1, 1, 8).view(2, 4)


def launched(function: Any, *args: Any, size: int = 2, device: str = "cpu", **how: Any) -> Any:
    return notebook_launcher(function, args, size, device=device, timeout_s=60, **how)


def train(precision: str = "no") -> tuple[Accelerator, nn.Module, Any]:
    torch.manual_seed(0)
    accelerator = Accelerator(mixed_precision=precision)
    model = Net()
    model.words = {"made by": ["a person"]}
    model.leave.bias.requires_grad_(False)
    model.register_buffer("seen", torch.zeros(1))
    model.register_forward_hook(counts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.backward(model(INPUTS).square().mean())
    optimizer.step()
    return accelerator, model, optimizer


def counts(model: Any, *args: Any) -> None:
    model.seen += 1


def returns_all_ways(precision: str) -> dict[str, Any]:
    accelerator, model, _ = train(precision)
    weight = model.leave.weight
    outputs = model(INPUTS).detach()  # leaves the outermost part whole on each rank
    rank = accelerator.process_index
    return {
        "model": accelerator.unwrap_model(model),
        "again": [(model,)],
        "block": model.blocks[1],
        "weight": weight,
        "other": train()[1] if rank == 1 else train() and None,  # of rank 1 alone
        "outputs": outputs,
        "state": accelerator.get_state_dict(model),
    }


@pytest.mark.parametrize("name", WISHES)
def test_a_returned_model_is_whole_and_plain(name: str) -> None:
    run = launched(returns_all_ways, "no", strategy=WISHES[name])
    found = run[0]
    model = found["model"]
    assert type(model) is Net and [type(one) for one in model.blocks] == [Block, Block]
    assert found["again"][0][0] is model and found["block"] is model.blocks[1]
    assert found["weight"] is model.leave.weight
    assert {name: type(one) for name, one in model.named_parameters()} == {
        name: nn.Parameter for name, _ in Net().named_parameters()
    }
    assert not model.leave.bias.requires_grad and model.leave.weight.requires_grad
    assert model.words == {"made by": ["a person"]} and model.seen.item() == 2
    for key, one in model.state_dict().items():
        assert torch.equal(one, found["state"][key]), key
    assert torch.allclose(model(INPUTS), found["outputs"], atol=1e-6)
    assert model.seen.item() == 3  # the person's own hook came along
    model(INPUTS).sum().backward()  # it trains on, here
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert run[1]["model"].leave.weight.is_meta  # one rank's copy is enough
    assert found["other"] is None and not run[1]["other"].leave.weight.is_meta


def test_a_returned_model_keeps_no_precision_of_the_run() -> None:
    model = launched(returns_all_ways, "bf16", strategy=FSDP())[0]["model"]
    assert "forward" not in vars(model)
    assert {one.dtype for one in model.parameters()} == {torch.float32}


def returns_on_main() -> Any:
    accelerator, model, _ = train()
    accelerator.end_training()
    if not accelerator.is_main_process:
        sys.exit(0)
    return model


def test_ranks_that_return_nothing_bring_their_parts() -> None:
    sharded, whole = (launched(returns_on_main, strategy=wish) for wish in (FSDP(), DDP()))
    assert sharded[1] is None
    for one, other in zip(sharded[0].parameters(), whole[0].parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def returns_what_was_freed() -> Any:
    accelerator, model, optimizer = train()
    if accelerator.is_main_process:
        return model
    accelerator.free_memory()
    del model, optimizer
    gc.collect()
    return None


def test_parts_that_were_dropped_are_missed_on_every_rank() -> None:
    with pytest.raises(RuntimeMisuse) as error:
        launched(returns_what_was_freed, strategy=FSDP())
    assert "rank 0 returned a sharded model, and rank 1 has dropped its parts" in error.value.what
    assert "return the model on every rank" in error.value.fix


def returns_early() -> Any:
    accelerator, model, _ = train()
    if accelerator.is_main_process:
        return model
    dist.all_reduce(torch.ones(1))
    return model


@pytest.mark.slow
def test_a_rank_that_calls_on_ranks_that_have_returned_is_told_so() -> None:
    with pytest.raises(RanksStuck) as error:
        launched(returns_early, strategy=FSDP())
    assert "rank 0 in its return" in error.value.what
    assert "rank 1 in all_reduce at " in error.value.what


class Bad:
    def __reduce__(self) -> Any:
        raise ValueError("not this one")


def returns_what_cannot_travel() -> Any:
    accelerator, model, _ = train()
    return [model, Bad()] if accelerator.is_main_process else model


def test_a_value_that_cannot_travel_says_so_and_nobody_waits() -> None:
    with pytest.raises(LaunchError, match="not this one"):
        launched(returns_what_cannot_travel, strategy=FSDP())


def returns_states() -> Any:
    _, model, optimizer = train()
    return model, optimizer.state_dict()


def test_an_optimizers_parts_do_not_leave_their_rank() -> None:
    with pytest.raises(LaunchError) as error:
        launched(returns_states, strategy=FSDP())
    assert "a sharded tensor (shape (6, 4)) was returned from a rank" in error.value.what
    assert "get_state_dict(model), called on all ranks" in error.value.fix


def returns_what_is_played() -> Any:
    accelerator = Accelerator()
    return accelerator.prepare(Net())


def test_of_a_model_whose_other_ranks_are_played_the_shapes_come_home() -> None:
    model = launched(returns_what_is_played, size=8, strategy=FSDP(), device="fake")[0]
    assert [(tuple(one.shape), one.is_meta) for one in model.parameters()] == [
        (tuple(one.shape), True) for one in Net().parameters()
    ]


class Earlier(nn.Linear):
    pass


def returns_a_model() -> nn.Module:
    return train()[1]


def test_a_fork_of_a_process_that_has_a_model_in_pieces_brings_its_own_home() -> None:
    earlier = Earlier(1, 1)
    HOME.expect(earlier)  # as ZeRO does for a model that is trained in the notebook itself
    run = launched(returns_a_model, strategy=FSDP(), start_method="fork")
    assert type(run[0]) is Net and run[0].leave.weight.shape == Net().leave.weight.shape

"""Letting go of memory, and trying again with less."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from notebook_accel import Accelerator, find_executable_batch_size, notebook_launcher
from notebook_accel.config.wishes import DDP, FSDP, Pipeline
from notebook_accel.errors import RuntimeMisuse
from notebook_accel.runtime.memory import release_memory, should_reduce_batch_size


def fits(limit: int, tried: list[int], error: BaseException | None = None):
    def train(batch_size: int, factor: int = 1) -> int:
        tried.append(batch_size)
        if batch_size > limit:
            raise error or torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return batch_size * factor

    return train


def test_the_size_shrinks_by_a_tenth_until_memory_suffices() -> None:
    tried: list[int] = []
    search = find_executable_batch_size(fits(90, tried), starting_batch_size=128)
    assert search(factor=2) == 164
    assert tried == [128, 115, 103, 92, 82]


def test_each_call_begins_at_the_starting_size_again() -> None:
    tried: list[int] = []
    search = find_executable_batch_size(starting_batch_size=10)(fits(9, tried))
    assert [search(), search()] == [9, 9]
    assert tried == [10, 9, 10, 9]


@pytest.mark.parametrize("reduce", [lambda size: size // 2, iter([8]).__next__])
def test_a_person_s_own_rule_says_the_next_size(reduce) -> None:
    tried: list[int] = []
    search = find_executable_batch_size(
        fits(8, tried), starting_batch_size=16, reduce_batch_size_fn=reduce
    )
    assert search() == 8
    assert tried == [16, 8]


def test_when_nothing_fits_the_error_says_so() -> None:
    with pytest.raises(RuntimeError) as error:
        find_executable_batch_size(fits(0, []), starting_batch_size=4)()
    assert error.value.what == "train ran out of memory at every batch size from 4"
    assert "one sample" in error.value.why
    assert "smaller model" in error.value.fix
    with pytest.raises(RuntimeMisuse, match="every batch size from 0"):
        find_executable_batch_size(fits(9, []), starting_batch_size=0)()


def test_other_errors_pass_through_at_once() -> None:
    tried: list[int] = []
    with pytest.raises(RuntimeError, match="shapes"):
        find_executable_batch_size(fits(1, tried, RuntimeError("shapes do not match")))()
    assert tried == [128]


def test_giving_the_batch_size_oneself_is_explained() -> None:
    for call in (lambda f: f(64, 1, 2), lambda f: f(batch_size=64), lambda f: f(size=1)):
        with pytest.raises(TypeError) as error:
            call(find_executable_batch_size(fits(128, [])))
        assert "does not fit" in error.value.what
        assert "puts the batch size first" in error.value.why
        assert "without the batch size" in error.value.fix
    with pytest.raises(TypeError, match="f\\(\\) does not fit"):

        @find_executable_batch_size
        def f() -> None: ...

        f()


def test_what_a_failed_try_held_is_released_before_the_next() -> None:
    alive: list[weakref.ref[torch.nn.Module]] = []

    @find_executable_batch_size(starting_batch_size=2)
    def train(batch_size: int) -> int:
        assert all(one() is None for one in alive)
        model = torch.nn.Linear(10, 10)
        alive.append(weakref.ref(model))
        if batch_size == 2:
            raise torch.OutOfMemoryError("out of memory")
        return batch_size

    assert train() == 1
    assert len(alive) == 2


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("anything"),
        MemoryError(),
        RuntimeError("HIP out of memory."),
        RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes."),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED."),
    ],
)
def test_libraries_say_in_many_ways_that_memory_is_out(error: BaseException) -> None:
    assert should_reduce_batch_size(error)


def test_the_allocator_of_the_cpu_is_understood_as_it_speaks() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**60)
    assert should_reduce_batch_size(error.value)
    assert not should_reduce_batch_size(ValueError("out of memory"))


@pytest.mark.parametrize("release", ["free_memory", "clear"])
def test_nothing_prepared_stays_alive_even_in_a_cycle(release: str) -> None:
    """MM01."""
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(10, 10)
    model.itself = [model]
    watched = weakref.ref(model)
    model = accelerator.prepare(model)
    gc.collect()
    assert watched() is not None
    del model
    assert getattr(accelerator, release)() == []
    assert watched() is None


def test_releasing_gives_a_none_for_each_object_and_collects_garbage() -> None:
    model = torch.nn.Linear(10, 10)
    model.itself = [model]
    watched = weakref.ref(model)
    model, other = release_memory(model, 5)
    assert model is None and other is None
    assert release_memory() == []
    assert watched() is None


class Blocks(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x).relu()
        return x


def frees(num_steps: int) -> tuple[bool, list[bool], bool]:
    accelerator = Accelerator()
    model = Blocks()
    optimizer = torch.optim.Adam(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    for _ in range(num_steps):
        optimizer.zero_grad()
        accelerator.forward_backward(
            model, (torch.ones(4, 8), torch.ones(4, 8)), torch.nn.functional.mse_loss
        )
        optimizer.step()
    watched = weakref.ref(accelerator.unwrap_model(model))
    parameters = [weakref.ref(one) for one in model.parameters()]
    inner = weakref.ref(optimizer.inner)
    model, optimizer = accelerator.free_memory(model, optimizer)
    gc.collect()
    return watched() is None, [one() is None for one in parameters], inner() is None


@pytest.mark.parametrize("strategy", [DDP(), FSDP(), Pipeline(stages=2)], ids=lambda one: one.name)
def test_nothing_prepared_stays_alive_in_an_engine_of_several_ranks(strategy: Any) -> None:
    for num_steps in (1, 6):  # guard rails watch the first ones
        run = notebook_launcher(
            frees, (num_steps,), 2, device="cpu", strategy=strategy, timeout_s=100
        )
        assert list(run) == [(True, [True] * 4, True)] * 2

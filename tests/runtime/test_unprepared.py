"""What never went through ``prepare`` is said on several ranks; data shared out by hand is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset

from notebook_accel import Accelerator
from notebook_accel.errors import RuntimeMisuse
from notebook_accel.events import rails
from notebook_accel.runtime.unprepared import call_of_prepare
from tests.runtime.test_guards import heard, heard_in_ranks

DATA = torch.arange(32.0).view(16, 2)


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rails, "_said", set())


def loop(accelerator: Accelerator, model: Any, optimizer: Any, batches: Iterable[Any]) -> None:
    for batch in batches:
        optimizer.zero_grad()
        accelerator.backward(model(batch).mean())
        optimizer.step()


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def forgets_all() -> None:
    loop(Accelerator(cpu=True), *parts(), DataLoader(DATA, batch_size=2))


def test_a_run_that_prepares_nothing() -> None:
    (text,), other = heard_in_ranks(forgets_all)
    assert text.startswith("backward() on 2 ranks, but nothing was prepared (File ")
    assert "each rank trains a model of its own, alone, on all the data" in text
    assert "`model, optimizer, loader = accelerator.prepare(model, optimizer, loader)`" in text
    assert other == [], "all ranks run the same line"
    assert heard(forgets_all) == [], "one rank trains alone in any case"


def forgets_loader(make: Callable[[Accelerator], Iterable[Any]]) -> None:
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(*parts())
    loop(accelerator, model, optimizer, make(accelerator))


def the_one_before_prepare(accelerator: Accelerator) -> Iterable[Any]:
    loader = DataLoader(DATA, batch_size=2)
    accelerator.kept = accelerator.prepare(loader)  # type: ignore[attr-defined]
    return loader


@pytest.mark.parametrize(
    "make",
    [
        the_one_before_prepare,
        lambda accelerator: DataLoader(DATA, batch_size=2, shuffle=True),
        lambda accelerator: through_a_function(DataLoader(DATA, batch_size=2, num_workers=1)),
    ],
)
def test_a_loader_that_is_read_and_was_not_prepared(make: Callable[..., Any]) -> None:
    (text,), other = heard_in_ranks(forgets_loader, make)
    assert text.startswith("2 ranks train, and a DataLoader is read that was not prepared (File ")
    assert "if your batches come from a DataLoader, prepare it" in text
    assert other == []
    assert heard(forgets_loader, make) == []


def through_a_function(loader: Any) -> Iterable[Any]:
    yield from loader


def by_sampler(accelerator: Accelerator) -> Iterable[Any]:
    sampler = DistributedSampler(range(16), 2, accelerator.process_index)
    return DataLoader(DATA, batch_size=2, sampler=sampler)


def by_part(accelerator: Accelerator) -> Iterable[Any]:
    part = Subset(DATA, range(accelerator.process_index, 16, 2))  # type: ignore[arg-type]
    return DataLoader(part, batch_size=2)


def by_hand(accelerator: Accelerator) -> Iterable[Any]:
    return DataLoader(DATA[accelerator.process_index :: 2], batch_size=2)


def by_hand_as_list(accelerator: Accelerator) -> Iterable[Any]:
    return DataLoader(list(DATA)[accelerator.process_index :: 2], batch_size=2, shuffle=True)


def prepared(accelerator: Accelerator) -> Iterable[Any]:
    accelerator.other = iter(DataLoader(DATA))  # type: ignore[attr-defined]
    accelerator.loader = accelerator.prepare(DataLoader(DATA, batch_size=2))  # type: ignore
    return accelerator.loader  # type: ignore[attr-defined]


def made_up(accelerator: Accelerator) -> Iterable[Any]:
    return [torch.ones(2, 2)] * 3


@pytest.mark.parametrize("make", [by_sampler, by_part, by_hand, by_hand_as_list, prepared, made_up])
def test_data_that_is_shared_out_hears_nothing(make: Callable[..., Any]) -> None:
    assert heard_in_ranks(forgets_loader, make) == [[], []]


def forgets_model(what: str, averages: str = "never") -> None:
    accelerator = Accelerator(cpu=True)
    model, optimizer = parts()
    loader = DataLoader(DATA, batch_size=2)
    if "optimizer" in what:
        optimizer = accelerator.prepare(optimizer)
    if "loader" in what:
        loader = accelerator.prepare(loader)
    rank = accelerator.process_index
    for batch in loader if "loader" in what else DATA[rank::2].split(2):
        optimizer.zero_grad()
        accelerator.backward(model(batch).mean())
        if averages == "by hand":
            for one in model.parameters():
                one.grad = accelerator.reduce(one.grad, "mean")
        elif averages == "by torch":
            for one in model.parameters():
                torch.distributed.all_reduce(one.grad)
        optimizer.step()


@pytest.mark.parametrize("what", ["optimizer", "loader", "optimizer, loader"])
def test_a_model_that_was_not_prepared(what: str) -> None:
    (text,), other = heard_in_ranks(forgets_model, what)
    assert text.startswith("2 ranks train, and the model was not prepared (File ")
    assert "each trains a model of its own on its part of the data" in text
    assert "write `model, optimizer = accelerator.prepare(model, optimizer)`" in text
    assert other == []
    assert heard(forgets_model, what) == []


@pytest.mark.parametrize("what", ["optimizer", "loader", "optimizer, loader"])
@pytest.mark.parametrize("how", ["by hand", "by torch"])
def test_gradients_that_a_person_averages_hear_nothing(what: str, how: str) -> None:
    assert heard_in_ranks(forgets_model, what, how) == [[], []]


def plain_backward() -> None:
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(*parts(), DataLoader(DATA, batch_size=2))
    for batch in loader:
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()


def test_a_launched_run_that_never_calls_backward_of_the_accelerator() -> None:
    (text,), other = heard_in_ranks(plain_backward)
    assert text.startswith("the optimizer steps, and accelerator.backward(loss) was never called")
    assert "gradients are averaged all the same" in text
    assert "the live curve need" in text
    assert "write accelerator.backward(loss) in place of loss.backward()" in text
    assert other == []
    assert heard(plain_backward) == [], "nobody draws a curve here"


def test_the_line_to_write_names_what_was_given() -> None:
    model, optimizer = parts()
    assert call_of_prepare([optimizer]) == "optimizer = accelerator.prepare(optimizer)"
    assert call_of_prepare([model, model, optimizer, DataLoader(DATA), 3]) == (
        "model, model2, optimizer, loader, other = "
        "accelerator.prepare(model, model2, optimizer, loader, other)"
    )


def test_a_value_without_a_name_cannot_be_logged() -> None:
    with pytest.raises(RuntimeMisuse, match="got a value of type int, not a dict") as caught:
        Accelerator(cpu=True).log(3)  # type: ignore[arg-type]
    assert 'accelerator.log({"loss": value})' in str(caught.value)

"""How values cross: the same thing on the other side, big parts in place, culprits named."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from notebook_accel.errors import LaunchError
from notebook_accel.events import context
from notebook_accel.launch import wire
from notebook_accel.launch.memory import anonymous_file


def across(value: Any) -> Any:
    encoder = wire.Encoder()
    encoder.dump(value)
    fd = anonymous_file("test")
    try:
        wire.write(fd, encoder)
        return wire.read(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(6).reshape(2, 3).t(),
        torch.tensor(3.5),
        torch.empty(0, 4),
        torch.tensor([1, -2], dtype=torch.int8),
        torch.tensor([1.5, 2.5], dtype=torch.bfloat16),
        torch.tensor([1 + 2j]),
        torch.tensor([True, False]),
        torch.arange(10)[2:7:2],
    ],
    ids=lambda tensor: f"{tensor.dtype}-{tuple(tensor.shape)}",
)
def test_a_tensor_arrives_with_its_values_dtype_and_shape(value: torch.Tensor) -> None:
    arrived = across(value)
    assert arrived.dtype == value.dtype
    assert arrived.shape == value.shape
    assert torch.equal(arrived, value)


def test_tensors_that_share_memory_still_share_it() -> None:
    base = torch.zeros(4)
    arrived, view = across((base, base[1:3]))
    view.fill_(7.0)
    assert arrived.tolist() == [0.0, 7.0, 7.0, 0.0]


def test_tied_weights_stay_tied() -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    arrived = across(model)
    assert arrived[1].weight is arrived[0].weight


def test_a_loss_with_a_graph_arrives_detached() -> None:
    weight = torch.ones(3, requires_grad=True)
    arrived = across((weight * 2).sum())
    assert arrived.item() == 6.0
    assert not arrived.requires_grad


def test_a_parameter_stays_a_trainable_parameter() -> None:
    arrived = across(nn.Linear(2, 2))
    assert isinstance(arrived.weight, nn.Parameter)
    assert arrived.weight.requires_grad


def test_an_array_arrives_writable_and_does_not_change_the_sender() -> None:
    array = np.arange(1000.0)
    arrived = across(array)
    arrived[0] = 5.0
    assert array[0] == 0.0
    assert arrived[1:].tolist() == array[1:].tolist()


def test_an_optimizer_keeps_its_state() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    arrived_model, arrived = across((model, optimizer))
    assert arrived.param_groups[0]["params"][0] is arrived_model.weight
    assert torch.equal(
        arrived.state[arrived_model.weight]["exp_avg"], optimizer.state[model.weight]["exp_avg"]
    )


def test_what_a_registered_type_stands_for_travels_in_its_place() -> None:
    class Wrapper:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

    context.encoders[Wrapper] = lambda wrapper: wrapper.inner
    try:
        assert across([Wrapper({"a": 1})]) == [{"a": 1}]
    finally:
        del context.encoders[Wrapper]


class TwoArguments(Exception):
    def __init__(self, code: int, where: str) -> None:
        super().__init__(f"{where} says {code}")
        self.code = code
        self.lock = threading.Lock()  # what real exceptions sometimes hold


def test_an_exception_that_pickle_cannot_rebuild_arrives_without_what_cannot_travel() -> None:
    sent = TwoArguments(7, "disk")
    arrived = across(sent)
    assert type(arrived) is TwoArguments
    assert str(arrived) == "disk says 7"
    assert arrived.code == 7
    assert not hasattr(arrived, "lock")


@pytest.mark.parametrize(
    "sent",
    [
        FileNotFoundError(2, "No such file", "a.txt"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        KeyError("missing"),
        StopIteration(5),
        torch.OutOfMemoryError("CUDA out of memory"),
        AssertionError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_exceptions_of_python_and_torch_arrive_whole(sent: Exception) -> None:
    arrived = across(sent)
    assert type(arrived) is type(sent)
    assert str(arrived) == str(sent)
    assert arrived.args == sent.args
    assert getattr(arrived, "filename", None) == getattr(sent, "filename", None)
    assert getattr(arrived, "value", None) == getattr(sent, "value", None)


def test_code_keeps_its_file_so_that_tracebacks_show_lines() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile("def f():\n    return lambda: 1\n", "a-cell", "exec"), namespace)
    arrived = across(namespace["f"])
    assert arrived.__code__.co_filename == "a-cell"
    assert arrived().__code__.co_filename == "a-cell"


def test_what_cannot_travel_is_named_with_its_type_and_size() -> None:
    lock = threading.Lock()

    def uses_it() -> Any:
        return lock

    with pytest.raises(Exception, match="pickle") as caught:
        across(uses_it)
    error = wire.cannot_travel(wire.parts_of(uses_it, (1, [2]), {}), caught.value)
    assert isinstance(error, LaunchError)
    assert "the captured variable lock (lock, " in error.what
    assert " bytes) cannot travel to a worker" in error.what
    assert "make lock inside the function" in error.fix


def test_an_argument_that_cannot_travel_is_named_by_its_position() -> None:
    generator = (i for i in range(3))
    parts = wire.parts_of(print, (1, generator), {"x": 2})
    error = wire.cannot_travel(parts, TypeError("no"))
    assert error.what.startswith("argument 1 (generator, ")


def test_a_sharded_tensor_is_refused_with_the_way_to_get_all_of_it() -> None:
    class DTensor(torch.Tensor):
        pass

    with pytest.raises(Exception, match=r"accelerator.get_state_dict\(model\)"):
        across(torch.ones(2).as_subclass(DTensor))


def test_a_class_known_on_the_other_side_travels_by_name() -> None:
    main = sys.modules["__main__"]
    known = type("Known", (), {"__module__": "__main__"})
    encoder = wire.Encoder(lambda cls: "Known" if cls is known else None)
    encoder.dump(known())
    fd = anonymous_file("test")
    try:
        wire.write(fd, encoder)
        arrived = wire.read(fd, {"Known": known})
    finally:
        os.close(fd)
    assert type(arrived) is known
    assert not hasattr(main, "Known")

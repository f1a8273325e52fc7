"""Calls that cannot work are refused at once, with the call to write."""

from __future__ import annotations

import functools
import os
import resource
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any

import pytest

from notebook_accel import RunConfig, notebook_launcher
from notebook_accel.config.placement import Placement
from notebook_accel.errors import ConfigError, LaunchError
from notebook_accel.events import context
from notebook_accel.events.emitter import Emitter
from notebook_accel.launch.preflight import check_call, check_files, refuse_inside_ranks


def train(model: Any, lr: float = 0.1) -> None:
    """A user's function."""


class Trainer:
    def run(self, lr: float) -> None:
        """A user's method."""

    def __call__(self, lr: float) -> None:
        """A user's callable object."""


def refusal(*args: Any, **kwargs: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        check_call(*args, **kwargs)
    return caught.value


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (train, (1,)),
        (train, [1, 0.2]),
        (functools.partial(train, 1), ()),
        (functools.partial(train, lr=2), (1,)),
        (Trainer().run, (0.1,)),
        (Trainer(), (0.1,)),
        (Trainer, ()),
        (lambda: None, ()),
        (print, ("anything",)),
        (dict, ()),
    ],
)
def test_every_kind_of_callable_passes(function: Any, args: Any) -> None:
    check_call(function, args)


def test_a_function_called_too_early_is_explained() -> None:
    error = refusal(train(1))
    assert error.what == "the function to launch is None"
    assert "notebook_launcher(main), not notebook_launcher(main())" in error.fix


def test_something_that_cannot_be_called_is_named_by_its_type() -> None:
    assert "is an int, which cannot be called" in refusal(3).what


def test_async_and_generator_functions_run_nothing() -> None:
    async def later() -> None: ...

    def lazy() -> Any:
        yield 1

    assert refusal(later).what == "later is async, so calling it runs nothing"
    assert refusal(lazy).what == "lazy is a generator, so calling it runs nothing"


@pytest.mark.parametrize(
    ("args", "fix"),
    [
        (5.0, "write notebook_launcher(train, args=(5.0,)), with the comma"),
        ("abc", "write notebook_launcher(train, args=('abc',)), with the comma"),
        (None, "write notebook_launcher(train, args=(None,)), with the comma"),
        (object(), "write notebook_launcher(train, args=(x,)), with the comma"),
        ({"lr": 1}, "pass named arguments in kwargs: notebook_launcher(train, kwargs={...})"),
        ({1, 2}, "write notebook_launcher(train, args=tuple(...))"),
        ((i for i in range(2)), "write notebook_launcher(train, args=tuple(...))"),
    ],
)
def test_args_that_are_no_tuple_are_shown_as_one(args: Any, fix: str) -> None:
    error = refusal(train, args)
    assert error.fix == fix
    assert error.what.startswith("args is a")


def test_kwargs_are_a_dict_with_names() -> None:
    check_call(train, (), {"model": 1})
    assert refusal(train, (1,), [("lr", 1)]).what == "kwargs is a list"
    assert refusal(train, (1,), {1: 2}).what == "kwargs has keys that are not strings"


def test_arguments_that_do_not_fit_show_the_call_that_would() -> None:
    error = refusal(train)
    assert "missing a required argument: 'model'" in error.what
    assert error.why.startswith("args has 0, kwargs has 0")
    assert error.fix == "write notebook_launcher(train, args=(model,))"
    assert "too many positional arguments" in refusal(train, (1, 2, 3)).what
    assert "unexpected keyword argument 'epochs'" in refusal(train, (1,), {"epochs": 3}).what
    assert refusal(lambda: None, (1,)).fix == "write args and kwargs to fit"


def test_two_missing_arguments_are_both_shown() -> None:
    def main(model: Any, loader: Any) -> None: ...

    assert refusal(main, (1,)).fix == "write notebook_launcher(main, args=(model, loader))"


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "2"])
def test_a_bad_process_count_is_a_value_error(value: Any) -> None:
    error = refusal(train, (1,), num_processes=value)
    assert isinstance(error, ValueError)
    assert f"num_processes={value!r}" in error.what


def test_environment_variables_are_strings() -> None:
    check_call(train, (1,), env={"A": "1"})
    assert refusal(train, (1,), env={"A": 1}).fix == 'write env={"A": "1"}'
    assert refusal(train, (1,), env=["A=1"]).what == "env is a list"


@pytest.mark.parametrize("name", ["block", "join", "trusted_network"])
@pytest.mark.parametrize("value", ["no", 0, None])
def test_a_switch_of_a_launch_is_on_or_off(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        notebook_launcher(train, (1,), **{name: value})
    assert caught.value.what == f"notebook_launcher({name}={value!r})"
    assert caught.value.why == "it is on or off"
    assert caught.value.fix == f"write {name}=True, or {name}=False"


def test_a_launch_inside_a_worker_is_refused() -> None:
    def inside_a_worker() -> None:
        read_fd, write_fd = os.pipe()
        flags = SimpleNamespace(stop=False)
        placement = Placement(rank=1, size=2)
        context.enter(context.WorkerContext(placement, Emitter(1, write_fd), flags, {}))
        try:
            check_call(train, (1,))
        finally:
            os.close(read_fd)
            os.close(write_fd)

    with pytest.raises(LaunchError) as caught:
        copy_context().run(inside_a_worker)
    assert caught.value.what == "rank 1 of a run tried to launch another run"
    assert "from the next cell" in caught.value.fix


def test_a_model_given_for_the_function_is_taken_for_a_call_too_many() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(
        ConfigError, match=r"the function to launch is a model \(Linear\)"
    ) as caught:
        check_call(torch.nn.Linear(1, 1))
    assert "not notebook_launcher(main())" in caught.value.fix


def test_a_bare_number_for_args_may_have_been_the_number_of_processes() -> None:
    with pytest.raises(ConfigError, match="args is an int") as caught:
        check_call(lambda x: x, 2)
    assert "or num_processes=2, if you meant the number of processes" in caught.value.fix


def test_a_launch_by_ranks_of_another_launcher_is_refused_and_leftovers_of_a_kernel_are_not() -> (
    None
):
    ranks = {"RANK": "1", "WORLD_SIZE": "2"}
    with pytest.raises(LaunchError) as caught:
        refuse_inside_ranks(1, ranks)
    assert caught.value.what.startswith("rank 1 of 2, as torchrun tells, tried to launch a run")
    assert "call the function itself, as main()" in caught.value.fix
    refuse_inside_ranks(2, ranks)  # one launch on each machine of several
    refuse_inside_ranks(1, {"RANK": "0", "WORLD_SIZE": "1"})
    refuse_inside_ranks(1, {})


def test_more_ranks_than_files_can_be_opened_for_are_refused_before_any_is() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 60, hard))
    try:
        notebook_launcher(os.getpid, num_processes=4, device="cpu", config=RunConfig())
        with pytest.raises(LaunchError) as error:
            notebook_launcher(os.getpid, num_processes=9, device="cpu", config=RunConfig())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "9 ranks take 97 open files to start, and this process may open" in error.value.what
    assert "ulimit -n" in error.value.fix
    assert len(os.listdir("/proc/self/fd")) <= before + 3
    check_files(4)

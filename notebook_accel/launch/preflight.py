"""What can be found wrong with a call before anything starts, said at once."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from notebook_accel.config import schema
from notebook_accel.config.placement import told_by
from notebook_accel.config.words import counted, kind_of
from notebook_accel.errors import ConfigError, LaunchError
from notebook_accel.events import context
from notebook_accel.events.lines import ipython
from notebook_accel.launch import openers

_FILES_EACH, _FILES = 9, 16  # that a launch opens while it starts: for each rank, and beside them


def check_call(
    function: Any,
    args: Any = (),
    kwargs: Any = None,
    *,
    num_processes: Any = None,
    env: Any = None,
) -> None:
    """Check what ``notebook_launcher`` was called with, before anything starts.

    Errors: LaunchError inside a worker; ConfigError for everything else, showing the call to write.
    """
    worker = context.current()
    if worker is not None:
        raise LaunchError(
            f"rank {worker.placement.rank} of a run tried to launch another run",
            "a launch starts from the kernel; its workers are the processes already",
            "return from this function first, and launch the other run from the next cell",
        )
    _check_function(function)
    name = called(function)
    _check_args(name, args)
    _check_kwargs(kwargs)
    _check_fit(function, name, tuple(args), kwargs or {})
    schema.check("num_processes", num_processes)
    _check_env(env)


def check_files(num_ranks: int) -> None:
    """Check that this process may open what it takes to start that many ranks.

    Errors: LaunchError.
    """
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _FILES_EACH * num_ranks + _FILES
    left = soft - len(openers.open_files(os.getpid()))
    if soft != resource.RLIM_INFINITY and left < needed:
        most = f", where the system lets it be {hard:,} at most" if hard > 0 else ""
        raise LaunchError(
            f"{counted(num_ranks, 'rank')} take {needed:,} open files to start, and this process "
            f"may open {max(left, 0):,} more",
            "what a rank writes and returns reaches the notebook through files of its own",
            f"launch fewer, or write `ulimit -n {soft - left + needed}` before Jupyter or the "
            f"script starts{most}",
        )


def refuse_inside_ranks(num_nodes: int, env: Mapping[str, str]) -> None:
    """Refuse a launch in a script whose ranks another launcher has started already.

    In a kernel such variables are leftovers, and on several machines each may start its own part.

    Errors: LaunchError.
    """
    if num_nodes > 1 or ipython() is not None:
        return
    told = told_by(env)
    if told is None or told.size == 1:
        return
    raise LaunchError(
        f"rank {told.rank} of {told.size}, as {told.by} tells, tried to launch a run of its own",
        "each of the ranks would start one, and none of these runs would know of the others",
        "call the function itself, as main(): the ranks are there already; or start this script "
        "as one process, by python; or unset WORLD_SIZE, if it was left here by something else",
    )


def called(function: Callable[..., Any]) -> str:
    """Name ``function`` as its author would: partials and callable objects have no own name."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _check_function(function: Any) -> None:
    if function is None:
        raise ConfigError(
            "the function to launch is None",
            "writing main() calls the function here and passes on what it returned",
            "pass the function itself: notebook_launcher(main), not notebook_launcher(main())",
        )
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(function, torch.nn.Module):
        raise ConfigError(
            f"the function to launch is a model ({type(function).__name__})",
            "writing main() calls the function here and passes on the model that it returned",
            "pass the function itself: notebook_launcher(main), not notebook_launcher(main())",
        )
    if not callable(function):
        raise ConfigError(
            f"the function to launch is {kind_of(function)}, which cannot be called",
            "the launcher calls it in each worker",
            "pass the function first and its arguments in args: notebook_launcher(main, args=(x,))",
        )
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        kind = "async" if inspect.iscoroutinefunction(function) else "a generator"
        raise ConfigError(
            f"{called(function)} is {kind}, so calling it runs nothing",
            "each worker calls the function once and takes what it returns",
            "pass a plain function that does the work and returns",
        )


def _check_args(name: str, args: Any) -> None:
    if isinstance(args, (tuple, list)):
        return
    if isinstance(args, dict):
        fix = f"pass named arguments in kwargs: notebook_launcher({name}, kwargs={{...}})"
    elif isinstance(args, (set, frozenset, range)) or inspect.isgenerator(args):
        fix = f"write notebook_launcher({name}, args=tuple(...))"
    else:
        plain = isinstance(args, (int, float, str, bool, type(None))) and len(repr(args)) < 40
        shown = repr(args) if plain else "x"
        fix = f"write notebook_launcher({name}, args=({shown},)), with the comma"
        if isinstance(args, int) and not isinstance(args, bool):
            fix += f"; or num_processes={args}, if you meant the number of processes"
    raise ConfigError(
        f"args is {kind_of(args)}", "args is a tuple or a list, one item an argument", fix
    )


def _check_kwargs(kwargs: Any) -> None:
    if kwargs is None or (isinstance(kwargs, dict) and all(isinstance(key, str) for key in kwargs)):
        return
    wrong = "has keys that are not strings" if isinstance(kwargs, dict) else f"is {kind_of(kwargs)}"
    raise ConfigError(
        f"kwargs {wrong}",
        "kwargs maps argument names to values",
        'write kwargs={"name": value}',
    )


def _check_fit(function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in callables do not tell
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        needed = [
            parameter.name
            for parameter in signature.parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        inside = f"{needed[0]}," if len(needed) == 1 else ", ".join(needed)
        call = f"notebook_launcher({name}, args=({inside}))" if needed else "args and kwargs to fit"
        raise ConfigError(
            f"{name}{signature} does not take these arguments: {error}",
            f"args has {len(args)}, kwargs has {len(kwargs)}; every rank gets the same ones, "
            "and no process number is added",
            f"write {call}",
        ) from None


def _check_env(env: Any) -> None:
    if env is None:
        return
    if not isinstance(env, dict):
        raise ConfigError(
            f"env is {kind_of(env)}",
            "env maps names of environment variables to values",
            'write env={"NAME": "value"}',
        )
    for key, value in env.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ConfigError(
                f"env has {key!r}: {value!r}",
                "names and values of environment variables are strings",
                f'write env={{"{key}": "{value}"}}',
            )

"""Reading and lending environment variables, for scripts that do it by Accelerate's names."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from notebook_accel.config.booleans import read_boolean
from notebook_accel.errors import ConfigError

Decorated = TypeVar("Decorated")
PREFIX = "ACCELERATE_"
# What ends a line, or means something to a shell, in a file of ``NAME=value`` lines.
_UNSAFE = set(" ;\n<>")


def str_to_bool(value: str, to_bool: bool = False) -> int | bool:
    """Read yes or no as 1 or 0, or as True or False with ``to_bool``.

    Errors: ConfigError (a ValueError) for other words.
    """
    yes = read_boolean(value)
    return yes if to_bool else int(yes)


def parse_flag_from_env(key: str, default: bool = False) -> bool:
    """Read yes or no from the variable ``key``.

    Errors: ConfigError (a ValueError) for other words.
    """
    return read_boolean(os.environ.get(key, str(default)), key)


def parse_choice_from_env(key: str, default: str = "no") -> str:
    """Give the variable ``key`` as it is written."""
    return os.environ.get(key, str(default))


def get_int_from_env(env_keys: Iterable[str], default: int) -> int:
    """Give the first of the variables that is a number of at least 0.

    Errors: ConfigError (a ValueError) for one that is no number.
    """
    for key in env_keys:
        word = os.environ.get(key, "-1")
        try:
            value = int(word)
        except ValueError:
            raise ConfigError(
                f"the environment variable {key} is {word!r}",
                "it counts something, and that is no whole number",
                f"set {key} to a number, or unset it",
            ) from None
        if value >= 0:
            return value
    return default


@contextmanager
def patch_environment(**kwargs: Any) -> Iterator[None]:
    """Set environment variables (names in capitals) inside the block, and put back what was."""
    names = [name.upper() for name in kwargs]
    before = {name: os.environ.get(name) for name in names}
    try:
        for name, value in kwargs.items():
            os.environ[name.upper()] = str(value)
        yield
    finally:
        for name, value in before.items():
            _put_back(name, value)


@contextmanager
def clear_environment() -> Iterator[None]:
    """Go without any environment variable inside the block; afterwards all are as before."""
    before = dict(os.environ)
    os.environ.clear()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def purge_accelerate_environment(func_or_cls: Decorated) -> Decorated:
    """Decorate a function, or the test methods of a class, to leave ``ACCELERATE_*`` as it was."""
    if isinstance(func_or_cls, type):
        for name, member in list(vars(func_or_cls).items()):
            if name.startswith("test") and inspect.isfunction(member):
                setattr(func_or_cls, name, _purged(member))
        return func_or_cls
    return _purged(func_or_cls)  # type: ignore[arg-type,return-value]


def are_libraries_initialized(*library_names: str) -> list[str]:
    """Give those of the libraries that are imported already."""
    return [name for name in library_names if name in sys.modules]


def lend(name: str, value: Any) -> Callable[[], None]:
    """Set a variable that another library reads, unless it is set; gives what takes it back."""
    before = os.environ.get(name)
    os.environ.setdefault(name, str(value))
    return functools.partial(_put_back, name, before)


def convert_dict_to_env_variables(current_env: Mapping[str, Any]) -> list[str]:
    """Write variables as the lines of a file, ``NAME=value``; what is unsafe there is left out.

    That is a name or value with a space, a semicolon, a newline or an angle bracket; a warning
    names it.
    """
    lines = []
    for name, value in current_env.items():
        if _UNSAFE & set(f"{name}{value}"):
            warnings.warn(
                f"{name} is left out: its name or value holds one of ' ', ';', '<', '>' or a "
                "newline, which a file of variables cannot.",
                stacklevel=2,
            )
        else:
            lines.append(f"{name}={value}\n")
    return lines


def _purged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        before = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}
        try:
            return function(*args, **kwargs)
        finally:
            now = {name for name in os.environ if name.startswith(PREFIX)}
            for name in now | set(before):
                _put_back(name, before.get(name))

    return wrapped


def _put_back(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value

"""From what was asked in several places to one valid answer that remembers where it came from.

argument > environment > file > default
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from notebook_accel.config.catalog.setting import given
from notebook_accel.config.contradictions import DEGREES, refuse_contradictions
from notebook_accel.config.settings import SETTINGS, nearest
from notebook_accel.config.sources import ARGUMENT, DEFAULT, Found, Source
from notebook_accel.config.values import check
from notebook_accel.config.variables import from_variables, to_variables
from notebook_accel.config.words import counted
from notebook_accel.errors import ConfigError

if TYPE_CHECKING:
    from notebook_accel.config.store import ConfigFile

# The environment that settings are read from, where it is not this process's.
_env: ContextVar[Mapping[str, str] | None] = ContextVar("env", default=None)
_USE_AXES = "use_parallelism_config"


class RunConfig:
    """What a run was asked for: ``RunConfig(num_processes=2, mixed_precision="bf16")``.

    Each keyword is a setting; what is left out has its default. ``config["name"]`` and
    ``config.name`` give values, ``given()`` what was chosen and ``source(name)`` where.
    ``num_processes`` counts the ranks on all machines together.

    Errors: ConfigError for a name or a value that cannot be.
    """

    __slots__ = ("_found",)
    _found: Found

    def __init__(self, **settings: Any) -> None:
        self._keep(_arguments(settings))

    @classmethod
    def of(cls, found: Found) -> RunConfig:
        """Make one of checked values and their sources.

        Errors: ConfigError for values that exclude each other.
        """
        config = cls.__new__(cls)
        config._keep(found)
        return config

    def _keep(self, found: Found) -> None:
        axis = next((name for name in DEGREES["parallelism"] if found.get(name, (1,))[0] > 1), None)
        if axis is not None:  # whoever gives sizes wants them, unless somebody says otherwise
            found = {_USE_AXES: (True, found[axis][1].like(_USE_AXES)), **found}
        in_order = {name: found[name] for name in SETTINGS if name in found}
        object.__setattr__(self, "_found", in_order)
        refuse_contradictions(self)

    def __getitem__(self, name: str) -> Any:
        if name not in SETTINGS:
            raise _no_setting(name)
        return self._found[name][0] if name in self._found else SETTINGS[name].default

    def __getattr__(self, name: str) -> Any:
        if name not in SETTINGS:
            raise AttributeError(f"RunConfig has no setting {name!r}")
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a RunConfig does not change: write config.but({name}={value!r})")

    def but(self, **settings: Any) -> RunConfig:
        """Give the same with other values for some settings."""
        return RunConfig.of({**self._found, **_arguments(settings)})

    def given(self) -> dict[str, Any]:
        """Give the settings that somebody chose, in whatever place."""
        return {name: value for name, (value, _) in self._found.items()}

    def source(self, name: str) -> str:
        """Say where a value came from.

        "argument", "option --X", "environment variable X", "file PATH, line N" or "default".
        """
        return str(self.origin(name))

    def origin(self, name: str) -> Source:
        """Give where a value came from."""
        if name not in SETTINGS:
            raise _no_setting(name)
        return self._found[name][1] if name in self._found else DEFAULT

    def environment(self) -> dict[str, str]:
        """Give the variables by which a launch tells its workers, under Accelerate's names."""
        return to_variables(self)

    def layer(self) -> Found:
        """Give what was chosen, each with its source."""
        return dict(self._found)

    @property
    def num_local_processes(self) -> int | None:
        """How many of the ranks run on each machine; None: one per accelerator.

        Errors: ConfigError when they do not divide.
        """
        total, num_nodes = self["num_processes"], self["num_nodes"]
        if total is None or total % num_nodes == 0:
            return None if total is None else total // num_nodes
        enough = -(-total // num_nodes) * num_nodes
        origin = self.origin("num_processes")
        raise ConfigError(
            f"{origin.quote('num_processes', total)} on {counted(num_nodes, 'machine')}",
            f"each machine runs as many ranks as the others, and {total} are not {num_nodes} times "
            "a whole number",
            f"write {origin.write('num_processes', enough)}",
        )

    def write(self, name: str, value: Any, beside: str = "") -> str:
        """Write a setting as it is written where it stands, or else where ``beside`` stands."""
        return self._place(name, beside).write(name, value)

    def call(self, name: str, beside: str = "") -> str:
        """Give what a setting is called where it stands, or else where ``beside`` stands."""
        return self._place(name, beside).call(name)

    def _place(self, name: str, beside: str) -> Source:
        origin = self.origin(name)
        return self.origin(beside).like(name) if beside and origin is DEFAULT else origin

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunConfig) and self.given() == other.given()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RunConfig({', '.join(f'{n}={v!r}' for n, v in self.given().items())})"

    def __reduce__(self) -> Any:
        return RunConfig.of, (self._found,)


def resolve(
    arguments: Mapping[str, Any],
    env: Mapping[str, str] | None = None,
    file: ConfigFile | None = None,
    config: RunConfig | None = None,
    options: Found | None = None,
) -> RunConfig:
    """Find every setting: argument > environment > file > default.

    Arguments that are None, or a mere default, ask for nothing; ``options`` are arguments of a
    command line, which know by which option they were given. ``config`` is one that was given
    as a whole: what it was told by arguments counts as an argument here, and so on. ``env`` is this
    process's environment if it is None, or that of ``as_ranks_will``.

    Errors: ConfigError naming the place.
    """
    around = _env.get() if env is None else env
    layers = [
        {} if file is None else file.layer(),
        from_variables(os.environ if around is None else around),
        {} if config is None else config.layer(),
        {**_arguments(arguments), **(options or {})},
    ]
    found: Found = {}
    for layer in layers:
        for name, (value, source) in layer.items():
            if name not in found or source.rank >= found[name][1].rank:
                found[name] = (value, source)
    return RunConfig.of(found)


@contextmanager
def as_ranks_will(env: Mapping[str, str]) -> Iterator[None]:
    """Let settings be read in the block as by ranks that have the environment ``env``."""
    token = _env.set(env)
    try:
        yield
    finally:
        _env.reset(token)


def _arguments(settings: Mapping[str, Any]) -> Found:
    found: Found = {}
    for name, value in settings.items():
        if name not in SETTINGS:
            raise _no_setting(name)
        if value is not None and given(value):
            found[name] = (check(SETTINGS[name], value), ARGUMENT)
    return found


def _no_setting(name: str) -> ConfigError:
    near = nearest(name, SETTINGS)
    return ConfigError(
        f"there is no setting {name!r}",
        "a RunConfig has the settings that `notebook-accel config show --all` lists",
        f"did you mean {near}?" if near else "leave it out",
    )

"""The settings of a launch, declared once: default, help, choices, range.

Constructing ``LaunchSettings`` checks every value, so that an instance is always valid. The
command line, pickers and documentation are generated from the same declarations.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from notebook_accel.errors import ConfigError

PRECISIONS = ("no", "fp16", "bf16")
START_METHODS = ("auto", "fork", "forkserver", "spawn", "inline")
DEVICES = ("auto", "auto-or-cpu", "cpu", "cuda", "gpu", "mps")
ON_INTERRUPT = ("raise", "return")


class _NotGiven(str):
    """A default that remembers that nobody asked for it; equal to its text in every other way."""

    __slots__ = ()


DEFAULT_PRECISION = _NotGiven("no")


def given(value: object) -> bool:
    """Tell whether a person chose ``value``, rather than a default standing in for a choice."""
    return not isinstance(value, _NotGiven)


def setting(
    default: Any,
    help: str,
    *,
    type: type = str,
    choices: Sequence[str] = (),
    at_least: float | None = None,
    above: float | None = None,
    optional: bool = False,
) -> Any:
    """Declare a setting: ``type`` is str, int or float; None is allowed when ``optional``."""
    facts = {
        "help": help,
        "type": type,
        "choices": tuple(choices),
        "at_least": at_least,
        "above": above,
        "optional": optional,
    }
    return dataclasses.field(default=default, metadata=facts)


@dataclass(frozen=True, kw_only=True)
class LaunchSettings:
    """What a launch was asked for, valid by construction.

    Errors: ConfigError naming the value, what is possible and the call to write.
    """

    num_processes: int | None = setting(
        None,
        "ranks on this machine; None: one per accelerator, or 1",
        type=int,
        at_least=1,
        optional=True,
    )
    mixed_precision: str = setting(
        DEFAULT_PRECISION, "number format of forward and backward passes", choices=PRECISIONS
    )
    device: str | int | list[int] | None = setting(
        None, "what to train on: a kind, or the numbers of the GPUs to take", choices=DEVICES
    )
    start_method: str = setting("auto", "how workers are started", choices=START_METHODS)
    max_restarts: int = setting(
        0, "how often all ranks start again after a failure", type=int, at_least=0
    )
    timeout_s: float | None = setting(
        None, "seconds after which the run is ended", type=float, above=0, optional=True
    )
    on_interrupt: str = setting(
        "raise", "what an interrupted launch does with its partial result", choices=ON_INTERRUPT
    )
    num_nodes: int = setting(1, "machines that take part", type=int, at_least=1)
    node_rank: int = setting(0, "which of these machines this one is", type=int, at_least=0)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check(field.name, getattr(self, field.name))
        check_node(self.node_rank, self.num_nodes)


def check_node(node_rank: int, num_nodes: int) -> None:
    """Raise ConfigError unless ``node_rank`` is one of ``num_nodes`` machines."""
    if not 0 <= node_rank < num_nodes:
        raise ConfigError(
            f"node_rank={node_rank}, but num_nodes={num_nodes}",
            "machines are numbered from 0",
            f"pass a node_rank from 0 to {num_nodes - 1}, or the real num_nodes",
        )


def check(name: str, value: object) -> None:
    """Raise ConfigError unless ``value`` is possible for the launch setting ``name``."""
    facts = LaunchSettings.__dataclass_fields__[name].metadata
    if name == "mixed_precision" and value == "fp8":
        raise ConfigError(
            "mixed_precision='fp8' is not supported yet",
            "8-bit numbers need scales of their own, which no engine of this version keeps",
            'pass mixed_precision="bf16"',
        )
    if name == "device":
        _check_device(value)
    elif value is None and facts["optional"]:
        return
    elif facts["choices"]:
        check_choice(name, value, facts["choices"])
    else:
        _check_number(name, value, facts)


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise ConfigError unless ``value`` is one of ``choices``; the nearest one is proposed."""
    if isinstance(value, str) and value in choices:
        return
    listed = ", ".join(repr(choice) for choice in choices)
    near = difflib.get_close_matches(str(value).lower(), choices, n=1)
    fix = f"pass {name}={near[0]!r}" if near else f"pass one of {listed}"
    raise ConfigError(f"{name}={_short(value)} is not known", f"{name} is one of {listed}", fix)


def _check_number(name: str, value: object, facts: Any) -> None:
    whole = facts["type"] is int
    least, above = facts["at_least"], facts["above"]
    accepted = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, accepted):
        kind = "a whole number" if whole else "a number of seconds"
        raise ConfigError(
            f"{name}={_short(value)} is {_a(type(value).__name__)}",
            f"{name} is {kind}{' or None' if facts['optional'] else ''}",
            f"write {name}={_as_number(value, whole)}",
        )
    if (least is not None and value < least) or (above is not None and not value > above):
        bound = f"at least {least}" if above is None else f"more than {above}"
        raise ConfigError(
            f"{name}={value!r} is out of range",
            f"{name} must be {bound}",
            f"write {name}={60 if least is None else least}, or leave it out",
        )


def _check_device(value: object) -> None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(i, int) and not isinstance(i, bool) for i in value):
            return
        raise ConfigError(
            f"device={_short(value)} is not a list of GPU numbers",
            "a list picks and orders GPUs by their numbers",
            "write, for example, device=[0, 1]",
        )
    if isinstance(value, str) and value.startswith("cuda:"):
        number = value.removeprefix("cuda:")
        raise ConfigError(
            f"device={value!r} is not known",
            "one GPU is picked by its number",
            f"write device={number if number.isdigit() else 0}",
        )
    check_choice("device", value, DEVICES)


def _as_number(value: object, whole: bool) -> str:
    """Write what was probably meant: 2 for "2" and for 2.0; a plain example for anything else."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "2" if whole else "60"
    if isinstance(value, bool):
        return "1"
    return str(int(number)) if number.is_integer() else ("2" if whole else str(number))


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

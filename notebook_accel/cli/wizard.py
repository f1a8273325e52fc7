"""The questions of ``notebook-accel config``: which are asked, in what order, with what answers.

Questions and answers come from the declarations of the settings; what is here says which of them
apply, and what this machine would answer. Pure: ``ask`` is whoever asks a person.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from notebook_accel.config.catalog.setting import Setting
from notebook_accel.config.contradictions import DEGREES
from notebook_accel.config.degrees import places_left
from notebook_accel.config.placement import DEFAULT_PORT
from notebook_accel.config.resolve import RunConfig
from notebook_accel.config.settings import SETTINGS
from notebook_accel.config.sources import ARGUMENT
from notebook_accel.config.values import read
from notebook_accel.config.words import counted
from notebook_accel.errors import ConfigError
from notebook_accel.launch.machine import Machine
from notebook_accel.launch.precisions import preselected, standing

# What is asked first; the other questions follow by section, in the order of their tables.
_FIRST = (
    "device", "num_nodes", "node_rank", "master_addr", "use_port", "num_processes",
    "mixed_precision", "strategy",
)  # fmt: skip
_LATER = ("fp8", "fsdp", "deepspeed", "megatron", "parallelism", "run", "dynamo", "tpu", "mpi")
# Other words for answers that are there already, and what is for a call and not for a file.
_ALIASES = ("gpu", "auto-or-cpu", "ddp", "fake")
_LAYOUTS = {
    "auto": "a whole copy on each: data parallel",
    "fsdp": "in shards, by torch's FSDP",
    "deepspeed": "in shards, by ZeRO",
    "megatron_lm": "layers and stages, by Megatron's degrees",
}
# What must fit together as soon as it is answered.
_OF_MACHINES = ("num_nodes", "node_rank", "num_processes")
_COMING = "kept, but not trainable yet"

Answers = dict[str, Any]


@dataclass(frozen=True)
class Option:
    """One answer to pick, and how it is shown."""

    value: Any
    label: str


@dataclass(frozen=True)
class Question:
    """One question: with ``options`` one of them is picked, otherwise the answer is written.

    ``default`` is picked or written already. ``check`` reads a written answer.

    Errors: ``check`` raises ConfigError for an answer that cannot be.
    """

    name: str
    text: str
    default: Any
    options: tuple[Option, ...] = ()
    check: Callable[[str], Any] = field(default=str, repr=False)


def interview(
    machine: Machine, ask: Callable[[Question], Any], before: Mapping[str, Any] | None = None
) -> Answers:
    """Ask everything that applies and give the answers by setting.

    ``before`` has the answers of an earlier time: they are proposed before what was detected.
    """
    answers: Answers = {}
    for one in _order():
        if applies(one, answers):
            answer = ask(question(one, answers, machine, before or {}))
            if answer is not None:
                answers[one.name] = answer
    return answers


def detected(machine: Machine) -> Answers:
    """Give what this machine would answer: all its accelerators, in the precision that suits it."""
    answers: Answers = {}
    for name in ("device", "num_processes", "mixed_precision"):
        answers[name] = _detected(SETTINGS[name], answers, machine)
    return answers


def applies(one: Setting, answers: Answers) -> bool:
    """Tell whether a question makes sense after the answers so far."""
    device = answers.get("device")
    if one.hardware and device not in one.hardware:
        return False
    belongs = _SECTIONS.get(one.section)
    if belongs is not None and not belongs(answers):
        return False
    if one.name in _GATES:
        return _GATES[one.name](answers)
    if one.section in _OPENED and not _OPENED[one.section](answers):
        return False
    return all(_holds(name, value, answers) for name, value in one.when.items())


def question(
    one: Setting, answers: Answers, machine: Machine, before: Mapping[str, Any]
) -> Question:
    """Make the question of a setting, the most likely answer first."""
    default = before.get(one.name)
    if default is None:
        default = _detected(one, answers, machine)
    if one.kind == "bool":
        options = (Option(True, "yes"), Option(False, "no"))
        return Question(one.name, one.question, bool(default), options)
    if one.choices:
        known = [value for value in one.choices if value not in _ALIASES]
        if default is None:  # nothing is an answer too
            known = [None, *known]
        elif default not in known:  # a word beyond the usual ones, from a file
            known.append(default)
        values = sorted(known, key=lambda value: (value != default, _is_far(one, value, machine)))
        if all(isinstance(value, int) for value in values):
            values = sorted(values)  # numbers are typed as they are: they stand in order
        shown = tuple(Option(value, _label(one, value, answers, machine)) for value in values)
        return Question(one.name, one.question, default, shown)
    return Question(one.name, one.question, default, check=lambda text: _read(one, text, answers))


# ── which apply ───────────────────────────────────────────────────────────────────────────────


def _order() -> Iterator[Setting]:
    yield from (SETTINGS[name] for name in _FIRST)
    for section in _LATER:
        for one in SETTINGS.values():
            if one.section == section and one.question and one.name not in _FIRST:
                yield one


def _several_ranks(answers: Answers) -> bool:
    return bool((answers.get("num_processes") or 1) > 1)


def _strategy(answers: Answers) -> str:
    return str(answers.get("strategy", "auto"))


_SECTIONS: dict[str, Callable[[Answers], bool]] = {
    "fp8": lambda answers: answers.get("mixed_precision") == "fp8",
    "fsdp": lambda answers: _strategy(answers) == "fsdp",
    "deepspeed": lambda answers: _strategy(answers) == "deepspeed",
    "megatron": lambda answers: _strategy(answers) == "megatron_lm",
    "parallelism": lambda answers: (
        _several_ranks(answers) and _strategy(answers) in ("auto", "ddp", "fsdp")
    ),
    "mpi": lambda answers: answers.get("device") == "cpu",
}
# The first question of a section, and what opens the others.
_GATES: dict[str, Callable[[Answers], bool]] = {
    "strategy": _several_ranks,
    "num_processes": lambda answers: answers.get("device") != "mps",
    "use_parallelism_config": _several_ranks,
    "dynamo_backend": lambda answers: True,
    "deepspeed_config_file": lambda answers: True,
}
_OPENED: dict[str, Callable[[Answers], bool]] = {
    "parallelism": lambda answers: bool(answers.get("use_parallelism_config")),
    "dynamo": lambda answers: answers.get("dynamo_backend", "no") != "no",
    "deepspeed": lambda answers: not answers.get("deepspeed_config_file"),
}


def _holds(name: str, value: Any, answers: Answers) -> bool:
    given = answers.get(name, SETTINGS[name].default)
    return bool(given > 1 if value == "several" else given == value)


# ── what this machine would answer ────────────────────────────────────────────────────────────


def _detected(one: Setting, answers: Answers, machine: Machine) -> Any:
    device = answers.get("device")
    if one.name == "device":
        return machine.kind
    if one.name == "num_processes":
        return machine.num_ranks(str(device)) * int(answers.get("num_nodes", 1))
    if one.name == "mixed_precision":
        here = machine.of_kind(str(device))
        return preselected(here, machine)[0] if here or device == "cpu" else "no"
    if one.name == "use_port":
        return DEFAULT_PORT
    if one.section == "parallelism" and one.name in DEGREES["parallelism"]:
        return _left(one, answers)  # whatever the first axes leave open
    return one.default


def _is_far(one: Setting, value: Any, machine: Machine) -> int:
    """Give how far an answer is from what can be done: 0 is here, 2 comes later."""
    if value in one.coming:
        return 2
    absent = value in ("cuda", "mps") and not machine.of_kind(value)
    return 1 if one.name == "device" and absent else 0


def _label(one: Setting, value: Any, answers: Answers, machine: Machine) -> str:
    said = ""
    if one.name == "device":
        said = _hardware(value, machine)
    elif one.name == "strategy":
        said = _LAYOUTS.get(value, "")
    elif one.name == "mixed_precision":
        here = machine.of_kind(str(answers.get("device")))
        if here or answers.get("device") == "cpu":
            found = standing(value, here, machine)
            said = found.why if found.mark == "native" else f"{found.mark}: {found.why}"
    if value in one.coming:
        said = f"{said}; {_COMING}" if one.name == "strategy" else _COMING
    name = "as it is" if value is None else str(value)
    return f"{name} - {said}" if said else name


def _hardware(kind: str, machine: Machine) -> str:
    if kind == "cpu":
        return f"{counted(machine.num_cores, 'core')} here"
    if kind == "auto":
        return "decided at each launch"
    names = [one.name for one in machine.of_kind(kind)]
    if not names:
        return "not in this machine"
    return names[0] if len(names) == 1 else f"{len(names)} x {names[0]}"


def _read(one: Setting, text: str, answers: Answers) -> Any:
    try:
        value = read(one, text, ARGUMENT)
        if one.name in _OF_MACHINES:
            counts = {name: answers.get(name) for name in _OF_MACHINES}
            _ = RunConfig(**{**counts, one.name: value}).num_local_processes
    except ConfigError as error:  # it says how an argument is written; here one types
        raise ConfigError(f"{text!r} cannot be", error.why) from None
    if value is None and one.when and not one.optional:
        raise ConfigError(f"{one.name} is needed", one.help)
    _check_degree(one, value, answers)
    return value


def _check_degree(one: Setting, value: Any, answers: Answers) -> None:
    """Refuse a degree that, with those answered before, does not divide the processes."""
    left = _left(one, answers)
    if left is None or not value or places_left(left, [value]) is not None:
        return
    ranks = int(answers["num_processes"])
    known = f" after {ranks // left}" if ranks > left else ""
    raise ConfigError(
        f"{value}{known} does not divide {ranks} processes",
        "degrees multiply, and their groups must fill the processes",
        f"write a divisor of {left}",
    )


def _left(one: Setting, answers: Answers) -> int | None:
    """Give the processes that are left for a degree by those before; None if it is no degree."""
    together = next((names for names in DEGREES.values() if one.name in names), ())
    ranks = answers.get("num_processes")
    if not together or not ranks:
        return None
    return places_left(ranks, [answers.get(name) for name in together if name != one.name]) or ranks

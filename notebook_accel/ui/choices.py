"""From what a person picked and what is there to a choice that can be launched. Pure.

    wishes (what was picked) ─┐
    machine (what is there) ──┴─ decide ─▶ Choice (a value for every setting) + what was dropped

Nothing else is kept: defaults, limits and options follow from these two, so a changed machine or
another pick needs no repair of state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from notebook_accel.config import values as setting_values
from notebook_accel.config.absent import refuse_unbuilt
from notebook_accel.config.resolve import RunConfig
from notebook_accel.config.settings import SETTINGS
from notebook_accel.config.wishes import Strategy
from notebook_accel.config.words import counted
from notebook_accel.errors import ConfigError, NotHere
from notebook_accel.launch.devices import Device
from notebook_accel.launch.machine import Machine
from notebook_accel.launch.plan import LaunchPlan, is_fake, plan
from notebook_accel.launch.precisions import Standing, preselected, standing
from notebook_accel.ui import menu

Place = str | int | tuple[int, ...]
AUTOMATIC = (None, "auto", "auto-or-cpu")
# Ranks on the CPU are as many as one likes, but for a slip of the hand: more than this a core, and
# more than that on few cores, take a machine's memory before they compute anything.
_MOST_A_CORE = 4
_MANY = 64


@dataclass(frozen=True)
class Choice:
    """A value for every setting that pickers ask; fields are named as in the catalog.

    ``device`` is "cpu", "mps", "cuda" (all GPUs), one GPU's number or several; ``strategy`` a word
    of the setting, or a wish where its questions were answered.
    """

    device: Place
    num_processes: int
    mixed_precision: str
    strategy: str | Strategy
    gradient_accumulation_steps: int

    def settings(self, names: Collection[str]) -> dict[str, Any]:
        """Give the settings called ``names``, in that order; GPUs as a list."""
        values = {name: getattr(self, name) for name in names}
        return {n: list(one) if isinstance(one, tuple) else one for n, one in values.items()}


@dataclass(frozen=True)
class Decision:
    """A choice, and a sentence for each wish that could not be kept."""

    choice: Choice
    dropped: dict[str, str]


@dataclass(frozen=True)
class Option:
    """One thing to pick, and what it is called on screen."""

    value: Any
    label: str


def decide(wishes: Mapping[str, Any], machine: Machine, firm: Collection[str] = ()) -> Decision:
    """Turn what was picked into a choice that this machine can run.

    What cannot be is dropped for the default and said, except for the ``firm`` wishes.

    Errors: ConfigError for a firm wish that cannot be here, NotHere for one that comes later.
    """
    values: dict[str, Any] = {}
    dropped: dict[str, str] = {}
    for name, (default, admit) in _RULES.items():
        if name in wishes:
            try:
                refuse_impossible(name, wishes[name], machine)
                values[name] = admit(wishes[name], values, machine)
                continue
            except (ConfigError, NotHere) as error:
                if name in firm:
                    raise
                dropped[name] = error.what
        values[name] = default(values, machine)
        if name in dropped:
            dropped[name] = f"{dropped[name]}; now {name}={values[name]!r}"
    return Decision(Choice(**values), dropped)


def refuse_impossible(name: str, wish: Any, machine: Machine) -> None:
    """Refuse a value that no machine could have; what is proposed is what ``machine`` takes.

    Errors: ConfigError, NotHere for what comes later.
    """
    if name == "strategy":
        menu.understood(wish)
    elif name == "device":
        _refuse_no_device(wish, machine)
    else:
        refuse_unbuilt(RunConfig(**{name: wish}))


def devices_of(device: Place, machine: Machine) -> tuple[Device, ...]:
    """Give the accelerators that ``device`` stands for; none of them is the CPU."""
    if isinstance(device, str):
        return () if device == "cpu" else machine.of_kind(device)
    wanted = (device,) if isinstance(device, int) else device
    gpus = {one.index: one for one in machine.of_kind("cuda")}
    return tuple(gpus[index] for index in wanted)


def planned(choice: Choice, machine: Machine) -> LaunchPlan:
    """Say who would run where."""
    return _plan(choice.num_processes, choice.device, machine)


def places(machine: Machine) -> list[Option]:
    """List the kinds of device to choose from, the preferred one first."""
    found = []
    gpus = machine.of_kind("cuda")
    if len(gpus) == 1:
        found.append(Option("cuda", f"GPU: {device_words(gpus[0])}"))
    elif gpus:
        found.append(Option("cuda", f"GPUs: {_plan(None, 'cuda', machine).device_words}"))
    if machine.of_kind("mps"):
        found.append(Option("mps", f"{machine.of_kind('mps')[0].name} (MPS)"))
    cores = counted(machine.num_cores, "usable core")
    parts = [machine.cpu_name, cores, memory_words(machine.free_bytes, machine.total_bytes)]
    return [*found, Option("cpu", f"CPU: {', '.join(filter(None, parts))}")]


def gpus(machine: Machine) -> list[Option]:
    """List the GPUs to take or leave, where there are several."""
    found = machine.of_kind("cuda")
    labels = [Option(one.index, f"GPU {one.index}: {device_words(one)}") for one in found]
    return labels if len(labels) > 1 else []


def standings(choice: Choice, machine: Machine) -> list[Standing]:
    """Tell of each precision how it runs on the devices of the choice."""
    used = devices_of(choice.device, machine)
    return [standing(name, used, machine) for name in ("no", "bf16", "fp16", "fp8")]


def most_processes(choice: Choice, machine: Machine) -> int:
    """Give the largest number of ranks: one an accelerator, or what a CPU can be meant to serve."""
    return len(devices_of(choice.device, machine)) or _most_on_cpu(machine)


def offered(name: str) -> tuple[Any, ...]:
    """List the choices of a setting that this version can carry out."""
    if name == "strategy":
        return tuple(menu.offered_words())
    return tuple(one for one in SETTINGS[name].choices if one not in SETTINGS[name].coming)


def device_words(device: Device) -> str:
    """Name a device, with its free memory where it is known."""
    memory = memory_words(device.free_bytes, device.total_bytes)
    return f"{device.name}, {memory}" if memory else device.name


def memory_words(free_bytes: int, total_bytes: int) -> str:
    """Write free memory as "14.6 of 15.8 GB free"; empty where nobody knows."""
    if not total_bytes:
        return ""
    return f"{free_bytes / 1e9:.1f} of {total_bytes / 1e9:.1f} GB free"


def _plan(num_processes: int | None, device: Place | None, machine: Machine) -> LaunchPlan:
    wanted = list(device) if isinstance(device, tuple) else device
    return plan(num_processes, wanted, machine.devices, machine.num_cores)


def _best_place(values: Mapping[str, Any], machine: Machine) -> Place:
    return next((kind for kind in ("cuda", "mps") if machine.of_kind(kind)), "cpu")


def _place(wish: Any, values: Mapping[str, Any], machine: Machine) -> Place:
    """Bring a device to its one form: all GPUs are "cuda", one of several is its number."""
    if wish in AUTOMATIC:
        return _best_place(values, machine)
    wish = "cuda" if wish == "gpu" else tuple(wish) if isinstance(wish, list) else wish
    _plan(None, wish, machine)  # says what cannot be
    if isinstance(wish, str):
        return wish
    numbers = (wish,) if isinstance(wish, int) else wish
    if numbers == tuple(one.index for one in machine.of_kind("cuda")):
        return "cuda"
    return numbers[0] if len(numbers) == 1 else numbers


def _most_on_cpu(machine: Machine) -> int:
    return max(_MANY, _MOST_A_CORE * machine.num_cores)


def _refuse_no_device(wish: Any, machine: Machine) -> None:
    declared = SETTINGS["device"]
    if is_fake(wish):
        raise ConfigError(
            f"device={wish!r} is nothing to pick",
            "it has one process play a rank of a layout, on no device",
            f'call notebook_launcher(main, num_processes=64, device="{wish}")',
        )
    if isinstance(wish, str) and wish in declared.choices:  # some machine has it
        refuse_unbuilt(RunConfig(device=wish))
        return
    here = ["gpu"] * bool(machine.of_kind("cuda"))
    here += [one.value for one in (*places(machine), *gpus(machine))]
    taken = (*AUTOMATIC[1:], *here)
    setting_values.check(replace(declared, choices=taken, coming=()), wish)
    numbers = [wish] if isinstance(wish, int) else list(wish)
    if min(numbers) < 0 or len(set(numbers)) < len(numbers):
        _plan(None, wish, machine)  # says what is wrong with them


def _num_ranks(wish: Any, values: Mapping[str, Any], machine: Machine) -> int:
    most = _most_on_cpu(machine)
    if not devices_of(values["device"], machine) and wish > most:
        raise ConfigError(
            f"num_processes={wish:,} on {counted(machine.num_cores, 'core')} is not offered",
            "each imports torch, which takes some hundred MiB, and they take turns on the cores",
            f"pick {most} or fewer; notebook_launcher itself starts as many as it is told",
        )
    _plan(wish, values["device"], machine)  # says what cannot be
    return int(wish)


def _precision(wish: Any, values: Mapping[str, Any], machine: Machine) -> str:
    there = standing(wish, devices_of(values["device"], machine), machine)
    if not there.can_be_picked:
        raise ConfigError(
            f"mixed_precision={wish!r} cannot be on device={values['device']!r}",
            there.why,
            'pick "no", or another device',
        )
    return str(wish)


def _strategy(wish: Any, values: Mapping[str, Any], machine: Machine) -> str | Strategy:
    return menu.admitted(wish, values["num_processes"])


def _as_wished(wish: Any, values: Mapping[str, Any], machine: Machine) -> Any:
    return wish


# Setting -> its default here, and what admits a wish or says why not; later ones see earlier ones.
_RULES: dict[str, tuple[Any, Any]] = {
    "device": (_best_place, _place),
    "num_processes": (
        lambda values, machine: len(devices_of(values["device"], machine)) or 1,
        _num_ranks,
    ),
    "mixed_precision": (
        lambda values, machine: preselected(devices_of(values["device"], machine), machine)[0],
        _precision,
    ),
    "strategy": (lambda values, machine: SETTINGS["strategy"].default, _strategy),
    "gradient_accumulation_steps": (
        lambda values, machine: SETTINGS["gradient_accumulation_steps"].default,
        _as_wished,
    ),
}

"""What a choice means: ranks, threads, batch, memory, and what should be known before. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from notebook_accel.config.offers import Costed
from notebook_accel.config.sizes import Sizes
from notebook_accel.config.wishes import Strategy, TensorParallel
from notebook_accel.config.words import counted
from notebook_accel.config.words import size as size_words
from notebook_accel.errors import ConfigError, Explained, MissingPackage
from notebook_accel.launch import doctor
from notebook_accel.launch.devices import Device
from notebook_accel.launch.machine import Machine
from notebook_accel.launch.plan import plan
from notebook_accel.launch.precisions import preselected, standing
from notebook_accel.ui import menu
from notebook_accel.ui.choices import Choice, devices_of, planned
from notebook_accel.ui.footprints import Footprint, by_precision, by_strategy, room

Severity = Literal["note", "warning", "error"]
TAKEN_SHARE = 0.25  # of a GPU's memory: less is the driver's own


@dataclass(frozen=True)
class Finding:
    """Something to know before a launch: what, and what to do about it where that is not plain."""

    severity: Severity
    text: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.severity}: {self.text}" + (f" ({self.fix})" if self.fix else "")


@dataclass(frozen=True)
class Outlook:
    """A choice in words: who runs, how workers start, what one update sees, why this precision.

    ``start`` is empty where it is not about this kernel.
    """

    ranks: str
    start: str
    batch: str
    precision: str
    memory: tuple[Footprint, ...]
    strategies: tuple[Costed, ...]
    findings: tuple[Finding, ...]


def outlook(
    choice: Choice,
    machine: Machine,
    asked: Collection[str],
    wishes: Mapping[str, object],
    dropped: Mapping[str, str],
    batch_size: int | None = None,
    sizes: Sizes | None = None,
    kernel: Collection[doctor.Finding] = (),
) -> Outlook:
    """Tell what ``choice`` means on ``machine``; ``asked`` are the settings that it answers.

    ``kernel`` is what the doctor says of the kernel that would launch.
    """
    memory = by_precision(sizes, choice, machine)
    strategies = by_strategy(sizes, choice, machine)
    findings = [
        *(Finding("note", text) for text in dropped.values()),
        *_tpu_findings(machine),
        *_kernel_findings(kernel, asked),
        *_device_findings(choice, machine, asked),
        *_precision_findings(choice, machine, asked),
        *(_strategy_findings(choice, machine, sizes) if "strategy" in asked else []),
        *_memory_findings(choice, machine, memory, strategies),
    ]
    return Outlook(
        ranks_words(choice, machine),
        "".join(one.what for one in kernel if one.topic == "start" and one.level == doctor.GOOD),
        batch_words(choice, batch_size),
        precision_words(choice, machine, "mixed_precision" in wishes),
        memory,
        strategies,
        tuple(findings),
    )


def ranks_words(choice: Choice, machine: Machine) -> str:
    """Say who runs where, with how many threads."""
    placed = planned(choice, machine)
    num_ranks = len(placed.placements)
    where = placed.device_words if devices_of(choice.device, machine) else "the CPU"
    threads = counted(placed.num_threads, "thread")
    return f"{counted(num_ranks, 'rank')} on {where}, {threads}{' each' if num_ranks > 1 else ''}"


def batch_words(choice: Choice, batch_size: int | None) -> str:
    """Say how many samples one optimizer step sees; the batch size is per rank."""
    ranks, steps = choice.num_processes, choice.gradient_accumulation_steps
    readers = menu.num_readers(choice.strategy, ranks)
    groups = f"{readers} ranks" if readers == ranks else f"{readers} groups of {ranks // readers}"
    factors = [groups] * (readers > 1) + [f"{steps} micro-batches"] * (steps > 1)
    if batch_size is None:
        return "one update sees " + " x ".join(["the loader's batch size", *factors])
    total = batch_size * readers * steps
    product = f"{' x '.join([str(batch_size), *factors])} = " if factors else ""
    return f"one update sees {product}{counted(total, 'sample')}"


def precision_words(choice: Choice, machine: Machine, was_picked: bool) -> str:
    """Say why this precision is set when nobody picked one, or what suits most people here."""
    suited, why = preselected(devices_of(choice.device, machine), machine)
    if not was_picked:
        return f"{spoken(suited)} is preselected: {why}"
    if choice.mixed_precision == suited:
        return f"{spoken(suited)} suits most models here: {why}"
    return f"{spoken(choice.mixed_precision)} is your choice; {spoken(suited)} suits most: {why}"


def spoken(precision: str) -> str:
    """Say a precision as a number format."""
    return "float32" if precision == "no" else precision


def _tpu_findings(machine: Machine) -> list[Finding]:
    if not machine.of_kind("tpu") or machine.of_kind("cuda"):
        return []
    try:
        plan(None, None, machine.devices, machine.num_cores)
    except ConfigError as error:
        return [Finding("warning", f"{error.what}: {error.why}", "the CPU of this machine trains")]
    return []


def _kernel_findings(kernel: Collection[doctor.Finding], asked: Collection[str]) -> list[Finding]:
    """Take what stands in a launch's way; that a device is open is said with how workers start."""
    if not _places_ranks(asked):
        return []
    severities: dict[str, Severity] = {doctor.BAD: "error", doctor.NOTE: "note"}
    found = [one for one in kernel if one.level in severities]
    return [Finding(severities[one.level], _kernel_words(one), one.fix) for one in found]


def _kernel_words(one: doctor.Finding) -> str:
    return ": ".join(filter(None, ["" if one.topic == "device" else one.what, one.why]))


def _places_ranks(asked: Collection[str]) -> bool:
    return "device" in asked or "num_processes" in asked


def _device_findings(choice: Choice, machine: Machine, asked: Collection[str]) -> list[Finding]:
    if not _places_ranks(asked):
        return []
    used = devices_of(choice.device, machine)
    found = [Finding("note", text) for text in planned(choice, machine).notes]
    idle = used[choice.num_processes :]
    if idle:
        word = "stay" if len(idle) > 1 else "stays"
        found.append(Finding("note", f"{' and '.join(map(_name, idle))} {word} idle"))
    if len({one.name for one in used}) > 1:
        found.append(Finding("note", "unlike GPUs: the slowest one sets the pace of all"))
    if any(one.uuid.startswith("MIG-") for one in used):
        found.append(Finding("note", "a MIG slice: CUDA gives a process one slice, so 1 rank"))
    for one in used[: choice.num_processes]:
        taken = one.total_bytes - one.free_bytes
        if taken > TAKEN_SHARE * one.total_bytes:
            found.append(
                Finding("warning", f"{_name(one)}: {size_words(taken)} are taken by other work")
            )
    return found


def _precision_findings(choice: Choice, machine: Machine, asked: Collection[str]) -> list[Finding]:
    used = devices_of(choice.device, machine)
    there = standing(choice.mixed_precision, used, machine)
    if "mixed_precision" not in asked or there.mark not in ("emulated", "slow"):
        return []
    text = f"{there.precision} is {there.mark} here, often slower than float32: {there.why}"
    return [Finding("warning", text, f"{spoken(preselected(used, machine)[0])} suits better")]


def _strategy_findings(choice: Choice, machine: Machine, sizes: Sizes | None) -> list[Finding]:
    word = menu.word_of(choice.strategy)
    found = _misfits(choice, machine)
    if word != menu.AUTO and choice.num_processes == 1:
        found.append(Finding("note", f"{word} has nothing to share out on 1 rank"))
    if word == "deepspeed" and "deepspeed" not in machine.packages:
        fix = 'pip install "notebook-accel[deepspeed]"'
        found.append(Finding("warning", "deepspeed is not installed in this kernel", fix))
    if word == "pipeline":
        text = "a pipeline's loop calls accelerator.forward_backward(model, (x, y), loss_fn)"
        found.append(Finding("note", text))
    wish = menu.wish_of(choice.strategy, choice.num_processes)
    if choice.device == "cpu" and _offloads(wish):
        found.append(Finding("note", "ranks compute on the CPU already: nothing is offloaded"))
    if isinstance(wish, TensorParallel) and not wish.plan and not (sizes and sizes.has_plan):
        model = (
            "the model is not known here, and" if sizes is None else "the model has no tp_plan, and"
        )
        text = f"{model} without a plan of how layers are divided the launch fails"
        fix = (
            f"write TensorParallel(size={wish.size}, plan={{...}}) in its line, or a model.tp_plan"
        )
        found.append(Finding("note" if sizes is None else "warning", text, fix))
    if word in ("tensor", "sequence") and choice.num_processes > 1:
        text = "ranks that work together talk in each layer: slow without fast links between them"
        found.append(Finding("note", text))
    return found


def _misfits(choice: Choice, machine: Machine) -> list[Finding]:
    """Tell what a launch would refuse of the strategy, in its words; packages are told apart."""
    wish = menu.wish_of(choice.strategy, choice.num_processes)
    try:
        wish.check_fit(planned(choice, machine).placements[0], choice.mixed_precision)
    except MissingPackage:
        return []
    except Explained as error:
        return [Finding("error", f"{error.what}: {error.why}", error.fix)]
    return []


def _offloads(wish: Strategy) -> bool:
    """Tell whether a strategy keeps something in the memory of the CPU."""
    fields = ("cpu_offload", "offload_optimizer", "offload_param")
    return any(getattr(wish, name, None) not in (None, False, "none") for name in fields)


def _memory_findings(
    choice: Choice,
    machine: Machine,
    memory: tuple[Footprint, ...],
    strategies: tuple[Costed, ...],
) -> list[Finding]:
    """Compare what each rank holds with what is free; activations come on top."""
    used = devices_of(choice.device, machine)[: choice.num_processes]
    held = [one.memory for one in memory if one.precision == choice.mixed_precision]
    needed = sum(one.total if used else one.total + one.host for one in held)
    free = room(choice, machine)
    if not free or needed <= free:
        return []
    told = f"the model needs {size_words(needed)} a rank, activations apart"
    fitting = next((one for one in strategies if one.fits), None)
    other = "" if fitting is None else _lean(fitting)
    if used:
        tight = min(used, key=lambda one: one.free_bytes)
        text = f"{told}; {_name(tight)} has {size_words(tight.free_bytes)} free"
        more = "a leaner optimizer" if choice.num_processes > 1 else "more GPUs"
        return [Finding("warning", text, f"{other or more}, or a smaller model")]
    ranks, less = choice.num_processes, "a leaner optimizer"
    if ranks > 1:
        told = f"{told}, {ranks} ranks {size_words(needed * ranks)}"
        less = "fewer ranks" if needed <= machine.free_bytes else less
    text = f"{told}; {size_words(machine.free_bytes)} are free"
    return [Finding("warning", text, f"{other or less}, or a smaller model")]


def _lean(one: Costed) -> str:
    needs = f", with {one.missing} installed" if one.missing else ""
    return f"{one.offer.label}: {size_words(one.memory.total)} a rank{needs}"


def _name(device: Device) -> str:
    return f"GPU {device.index}" if device.kind == "cuda" else device.name

"""What stands in the way of training here: findings, each with what, why and what to do.

In a cell: ``notebook_accel.doctor()``. In a terminal: ``notebook-accel doctor``, also about a
kernel that runs elsewhere on this machine (``--pid``). Nothing is opened to find out, except in
worker processes that are gone afterwards.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from notebook_accel.config import schema
from notebook_accel.config.installed import version_of
from notebook_accel.config.placement import DEFAULT_PORT
from notebook_accel.config.variables import strangers
from notebook_accel.config.words import counted, size
from notebook_accel.events.lines import ipython
from notebook_accel.launch import devices, openers, start
from notebook_accel.launch.trial import Trial, Wanted, too_many, try_all

GOOD, NOTE, BAD = "ok", "note", "bad"
_SHM_BYTES = 512 * 2**20
_FILES = 1024
_NOTABLE_S = 1.0
_WIDTH = 80
_WORKER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")


@dataclass(frozen=True)
class Finding:
    """One fact about this place: ``level`` is "ok", "note" or "bad"; ``topic`` one word."""

    level: str
    topic: str
    what: str
    why: str = ""
    fix: str = ""

    def __str__(self) -> str:
        parts = [(f"{self.level:<6}{self.topic:<12}", self.what)]
        parts += [(f"{'':<18}why: ", self.why)] if self.why else []
        parts += [(f"{'':<18}do:  ", self.fix)] if self.fix else []
        return "\n".join(_wrapped(head, text) for head, text in parts)


@dataclass(frozen=True)
class Diagnosis:
    """All findings; shown as text. ``healthy`` is False when one of them stands in the way."""

    findings: tuple[Finding, ...]
    num_processes: int

    @property
    def healthy(self) -> bool:
        """Whether training on ``num_processes`` processes works here."""
        return not any(finding.level == BAD for finding in self.findings)

    def __repr__(self) -> str:
        many = counted(self.num_processes, "process", "processes")
        verdict = "can train here" if self.healthy else "cannot train here as things are"
        return "\n".join([f"{many} {verdict}", "", *map(str, self.findings)])


def doctor(num_processes: int = 2) -> Diagnosis:
    """Find out whether ``num_processes`` processes can train from here, by trying it.

    Looks at what this kernel has open and who opened it, at start methods, memory, ports and
    leftovers of other launchers, and starts ranks that add up once on the CPU and once on the
    accelerators. Takes some seconds. In a cell, leave it as the last line to see the findings.

    Ranks: called in the notebook's own process.
    Errors: ConfigError for a number of processes that cannot be.
    """
    schema.check("num_processes", num_processes)
    return examine(num_processes, try_all)


Attempts = Callable[[Sequence[Wanted]], Iterable[Trial]]


def examine(num_processes: int, attempts: Attempts) -> Diagnosis:
    """Collect all findings about this process; ``attempts`` makes trial runs."""
    env = dict(os.environ)
    found = devices.accelerators()
    findings = [
        *opened(),
        *accelerators(found, env),
        *start_methods(),
        *leftovers(env),
        *shared_memory(),
        *limits(),
        *ports(),
        *trials(num_processes, len(found), attempts),
    ]
    return Diagnosis(tuple(findings), num_processes)


# ── devices ───────────────────────────────────────────────────────────────────────────────────


def opened() -> Iterator[Finding]:
    """Tell whether this process has opened an accelerator, and who did it."""
    fact = openers.named(start.spoiled_accelerator())
    if not fact:
        yield Finding(GOOD, "device", "nothing here has opened an accelerator")
        return
    yield Finding(
        NOTE,
        "device",
        fact,
        "a forked process cannot use an accelerator that its parent opened, so workers start "
        "fresh here (forkserver), which takes some seconds the first time",
        "nothing, or keep device calls inside the launched function"
        if openers.watched() is not None
        else "restart the kernel and run `%load_ext notebook_accel` in its first cell: it names "
        "the line and the package that opens the device",
    )


def holders(files: str = openers.DEVICE_FILES) -> Iterator[Finding]:
    """Name the processes of this machine that have a device file open, as far as we may see."""
    own = os.getpid()
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        pid = int(folder.name)
        if pid == own:
            continue
        paths = _devices_of(pid, files)
        if paths:
            yield Finding(
                NOTE,
                "device",
                f"process {pid} ({_command(folder)}) has {', '.join(paths)} open",
                "what it holds there is memory that a training run cannot have",
                "end it if it is a leftover (a finished notebook: shut its kernel down)",
            )


def kernel(pid: int, files: str = openers.DEVICE_FILES) -> Iterator[Finding]:
    """Look at another process, a running kernel, from outside: what it has open."""
    folder = Path(f"/proc/{pid}")
    if not folder.exists():
        yield Finding(
            BAD,
            "kernel",
            f"there is no process {pid} here",
            "it ended, runs on another machine, or this is no Linux",
            "`ps aux | grep ipykernel` lists the kernels of this machine and their numbers; or run "
            "notebook_accel.doctor() in the notebook's own cell",
        )
        return
    paths = _devices_of(pid, files)
    if paths:
        yield Finding(
            NOTE,
            "kernel",
            f"process {pid} ({_command(folder)}) has {', '.join(paths)} open",
            "code in it opened an accelerator; its workers start fresh (forkserver)",
            "run `%load_ext notebook_accel` in its first cell to learn which line does it",
        )
    else:
        yield Finding(GOOD, "kernel", f"process {pid} ({_command(folder)}) has no device open")


def _devices_of(pid: int, files: str) -> list[str]:
    return sorted({path for path in openers.open_files(pid) if re.match(files, path)})


def _command(folder: Path) -> str:
    try:
        words = (folder / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return "gone"
    return " ".join(word for word in words if word)[:60]


def accelerators(found: list[devices.Device], env: Mapping[str, str]) -> Iterator[Finding]:
    """Say what there is to train on, and whether the installed torch fits it."""
    torch = version_of("torch") or "not installed"
    hidden = env.get("CUDA_VISIBLE_DEVICES")
    if found:
        names = ", ".join(f"{one.kind}:{one.index} {one.name}" for one in found)
        yield Finding(GOOD, "hardware", f"{names}; torch {torch}")
        return
    chips = devices.read_nvml()
    if chips and torch.endswith("+cpu"):
        yield Finding(
            BAD,
            "hardware",
            f"{len(chips)} GPUs are here, but torch {torch} cannot use them",
            "this build of torch has no CUDA in it",
            "install torch with CUDA: https://pytorch.org/get-started/locally",
        )
    elif chips and hidden is not None:
        yield Finding(
            NOTE,
            "hardware",
            f"CUDA_VISIBLE_DEVICES={hidden!r} hides all {len(chips)} GPUs",
            "processes see only the GPUs that this variable names",
            "unset it, if GPUs are wanted",
        )
    else:
        yield Finding(GOOD, "hardware", f"no accelerator: ranks train on the CPU; torch {torch}")


def start_methods() -> Iterator[Finding]:
    """Say how workers would start from this process."""
    if sys.platform == "win32":
        yield Finding(
            BAD,
            "start",
            "workers cannot be started on Windows",
            "they need descriptors and signals that Windows does not have",
            "run in WSL 2",
        )
        return
    choice = start.choose("auto")
    reason = choice.reason
    if ipython() is None:  # it was written for cells
        reason = reason.replace("this kernel", "this process")
    yield Finding(GOOD, "start", f"workers start by {choice.method}: {reason}")


# ── surroundings ──────────────────────────────────────────────────────────────────────────────


def leftovers(env: Mapping[str, str] | None = None) -> Iterator[Finding]:
    """Find what another launcher left in the environment, this process's if it is None."""
    env = os.environ if env is None else env
    set_here = [name for name in _WORKER_VARIABLES if name in env]
    if set_here:
        yield Finding(
            NOTE,
            "variables",
            f"{', '.join(f'{name}={env[name]}' for name in set_here)} in the environment",
            "that is what a launched worker has: an Accelerator made here believes it is a rank",
            "unset them, unless this process was started by torchrun or a cluster",
        )
    for variable, near in strangers(env):
        yield Finding(
            NOTE,
            "variables",
            f"the variable {variable} is not known, and counts for nothing",
            f"{near} is the name that settings are read from",
            f"set {near} instead",
        )
    threads = env.get("OMP_NUM_THREADS", "")
    cores = devices.usable_cores()
    if threads.isdigit() and int(threads) > cores:
        yield Finding(
            NOTE,
            "variables",
            f"OMP_NUM_THREADS={threads}, but {cores} cores may be used",
            "more threads than cores take turns, in every rank",
            "unset it: ranks then share the cores",
        )


def shared_memory(folder: str = "/dev/shm", enough: int = _SHM_BYTES) -> Iterator[Finding]:
    """Look at the memory by which DataLoader workers hand over batches."""
    if not os.path.isdir(folder):
        return
    usage = shutil.disk_usage(folder)
    said = f"{folder} has {size(usage.free)} free of {size(usage.total)}"
    if usage.free >= enough:
        yield Finding(GOOD, "memory", said)
        return
    yield Finding(
        NOTE,
        "memory",
        said,
        "batches of DataLoader workers pass through it; when it is full they die by SIGBUS "
        "(our own workers do not use it)",
        "start the container with --ipc=host or --shm-size=8g, or use num_workers=0",
    )


def limits() -> Iterator[Finding]:
    """Look at limits of this process that several ranks would meet."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _FILES:
        yield Finding(
            NOTE,
            "limits",
            f"a process may open {soft} files",
            "tensors that DataLoader workers hand over take one each",
            f"raise it: `ulimit -n {min(65536, hard)}` before Jupyter starts",
        )


def ports(port: int = DEFAULT_PORT) -> Iterator[Finding]:
    """Look at the places where ranks meet: loopback, and the port for several machines."""
    if not _can_listen(0):
        yield Finding(
            BAD,
            "ports",
            "nothing can listen on 127.0.0.1",
            "the ranks of one machine meet there",
            "allow loopback in the sandbox or firewall",
        )
        return
    if _can_listen(port):
        yield Finding(GOOD, "ports", f"loopback works; port {port} is free")
    else:
        yield Finding(
            NOTE,
            "ports",
            f"loopback works; port {port} is taken",
            "another run, perhaps a hung one, listens there; only runs on several machines "
            "need a fixed port",
            "pass another use_port (--main_process_port) on all machines",
        )


def _can_listen(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen()
        except OSError:
            return False
    return True


# ── trying it ─────────────────────────────────────────────────────────────────────────────────


def trials(num_processes: int, num_devices: int, attempts: Attempts) -> Iterator[Finding]:
    """Start ranks on the CPU (gloo), and on the accelerators if there are any (nccl).

    More than a machine of these cores can serve are not tried.
    """
    crowd = too_many(num_processes, devices.usable_cores())
    if crowd is not None:
        yield Finding(BAD, "cores", crowd.what, crowd.why, crowd.fix)
        return
    wanted = {"gloo": Wanted(num_processes)}
    if sys.platform == "linux":
        wanted["forkserver"] = Wanted(num_processes, start_method="forkserver")
    if num_devices:
        wanted["nccl"] = Wanted(min(num_processes, num_devices), "auto")
    for topic, trial in zip(wanted, attempts(list(wanted.values())), strict=True):
        yield trial_finding(topic, trial)


def trial_finding(topic: str, trial: Trial) -> Finding:
    """Say how a trial went."""
    if not trial.error:
        said = f"{_ranks(trial)}, started by {trial.method}, added up in {trial.took_s:.1f} s"
        if trial.waited_s >= _NOTABLE_S:
            said += f"; the first launch waits {trial.waited_s:.0f} s for its imports"
        return Finding(GOOD, topic, said)
    return Finding(
        BAD,
        topic,
        f"{_ranks(trial)} failed: {trial.error}",
        trial.why or "a launch from here would meet the same",
        "mend what it names, and run the doctor again",
    )


def _ranks(trial: Trial) -> str:
    return f"{counted(trial.num_ranks, 'rank')} on {trial.devices}"


def _wrapped(head: str, text: str) -> str:
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def as_data(diagnosis: Diagnosis) -> dict[str, Any]:
    """Give a diagnosis as plain data."""
    return {
        "healthy": diagnosis.healthy,
        "num_processes": diagnosis.num_processes,
        "findings": [dict(vars(finding)) for finding in diagnosis.findings],
    }

"""``notebook-accel launch``: run a script on one process, on several, or on several machines.

The options are Accelerate's and torchrun's; all words after the script's name are the script's.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from notebook_accel.cli.parsing import Parser, both_spellings
from notebook_accel.config import absent, accelerates, fp8, show, store
from notebook_accel.config.missing import refuse_missing_files
from notebook_accel.config.options import add_options, chosen
from notebook_accel.config.placement import Placement
from notebook_accel.config.resolve import RunConfig, resolve
from notebook_accel.config.settings import SECTIONS
from notebook_accel.config.sources import Source
from notebook_accel.config.strategy import check_launch
from notebook_accel.errors import ConfigError
from notebook_accel.launch import addresses
from notebook_accel.launch.devices import accelerators, usable_cores
from notebook_accel.launch.notes import notes
from notebook_accel.launch.plan import refuse_fake
from notebook_accel.launch.scripts import rendezvous
from notebook_accel.launch.scripts.program import program
from notebook_accel.launch.scripts.rendezvous import Torchrun
from notebook_accel.launch.scripts.start import is_busy, start
from notebook_accel.launch.scripts.way import SIDE_BY_SIDE, Here, Way, choose

PROG = "notebook-accel launch"
_EXAMPLES = """examples:
  notebook-accel launch train.py              (every GPU here, else the CPU)
  notebook-accel launch --num_processes 2 --cpu train.py --lr 0.1
  notebook-accel launch --num_machines 2 --machine_rank 0 \\
      --main_process_ip 10.0.0.1 --num_processes 16 train.py
"""
_SHOWN = ("run", "machines")
_QUIET = {"NOTEBOOK_ACCEL_UI": "off"}  # rank 0 tells of its loop otherwise
# About cells, or about a process that is alone: no option of a launch does anything to them.
_OF_NOTEBOOKS = ("start_method", "timeout_s", "on_interrupt", "log_line_prefix_template")
_DETAILS = (
    *("torch_device", "log_level", "enable_rich", "init_include_buffers", "bypass_device_map"),
    *("allow_cp_standalone", "main_training_function", "same_network", "enable_cpu_affinity"),
)
# Options that Accelerate had once.
_ANSWERS = {
    "--fp16": "write --mixed_precision fp16",
    "--bf16": "write --mixed_precision bf16",
    **dict.fromkeys(("--ipex", "--use_ipex"), f"leave it out. {accelerates.DROPPED['ipex']}"),
}
# Torchrun's own options that are passed on to its agent as they are: name -> help.
_PASSED_ON = {
    "redirects": "which streams go to files only, as --tee says it",
    "local_ranks_filter": "whose output is shown, as 0,1",
    "numa_binding": "bind ranks to NUMA nodes: node, socket, exclusive, core-complex",
    "signals_to_handle": "signals that the agent passes on",
    "shutdown_timeout": "seconds that ranks have to end",
    "event_log_handler": "who takes the agent's events",
    "logs_specs": "entry point that decides on log files",
    "duplicate_stdout_filters": "words, comma-separated: lines of stdout with one go to a file too",
    "duplicate_stderr_filters": "the same of stderr",
}
# Those that take no word.
_PASSED_ON_ALONE = {
    "run_path": "run the script by runpy in each rank's first interpreter",
    "virtual_local_rank": "let every rank be LOCAL_RANK 0, with a GPU that is number 0 to it",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.usage = f"{parser.prog} [options] SCRIPT [the script's own words]"
    parser.epilog = _EXAMPLES
    parser.formatter_class = _formatter(parser.formatter_class)
    parser.add_argument("program", metavar="SCRIPT", help=argparse.SUPPRESS)
    words = parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    words.required = False
    add = parser.add_argument
    add("--help_all", action=_HelpAll, nargs=0, help="list every option: FSDP, DeepSpeed, ...")
    add("-m", "--module", action="store_true", help="SCRIPT is a module, as in python -m")
    add("--no_python", action="store_true", help="SCRIPT is a program that Python does not run")
    add("--config_file", metavar="PATH", help="settings, ours or Accelerate's; default: yours")
    add("--dry_run", action="store_true", help="print what would be started, and start nothing")
    add("-q", "--quiet", action="store_true", help="write nothing about the run on stderr")
    add_options(parser)
    _declare_torchruns(parser.add_argument_group("As torchrun takes them"))
    _fold(parser)
    if isinstance(parser, Parser):
        parser.answers = _ANSWERS


def _declare_torchruns(group: argparse._ArgumentGroup) -> None:
    def add(*names: str, **facts: Any) -> None:
        group.add_argument(*both_spellings(names), **facts)

    add("--nnodes", metavar="N|MIN:MAX", help="machines; MIN are enough to go on")
    add("--nproc_per_node", metavar="N", help="ranks on each machine")
    add("--standalone", action="store_true", help="one machine under torch's agent")
    add("--local_addr", metavar="ADDRESS", help="this machine's address")
    for name, help in _PASSED_ON.items():
        short = ["-r"] if name == "redirects" else []
        add(*short, f"--{name}", metavar="VALUE", help=help)
    for name, help in _PASSED_ON_ALONE.items():
        add(f"--{name}", action="store_true", help=help)


def run(options: argparse.Namespace) -> int:
    """Start what was asked for, or with ``--dry_run`` tell what that would be."""
    config, path = _settings(options)
    torchrun = _torchrun(options)
    script = program([options.program, *options.words], options.module, options.no_python)
    refuse_fake(config["device"])
    absent.refuse_unbuilt(config)
    refuse_missing_files(config)
    fp8.refuse_without_library(config)
    way = choose(script, config, torchrun, _look_around(config, torchrun))
    if way.world_size is not None:
        place = Placement(size=way.world_size, local_size=way.num_ranks)
        check_launch(config, None, way.environment(os.environ), place)
    said = [f"note: {note}" for note in (*way.notes, *notes(config, os.environ, path))]
    if options.dry_run:
        print("\n".join(_plan(way, said, config, path)))
        return 0

    def say(text: str) -> None:
        if way.speaks and not options.quiet:
            print(f"{PROG}: {text}", file=sys.stderr, flush=True)

    for line in (way.headline, *said):
        say(line)
    return start(way, {**os.environ, **(_QUIET if options.quiet else {})}, say)


# ── what was asked ────────────────────────────────────────────────────────────────────────────


def _settings(options: argparse.Namespace) -> tuple[RunConfig, Path | None]:
    said = chosen(options)
    for name in _OF_NOTEBOOKS:
        if name in said:
            raise ConfigError(
                f"--{name} is no option of a launch",
                f"{name} is about workers of a notebook; a script is a process of its own",
                f"leave it out, or write notebook_launcher(main, {name}=...) in a cell",
            )
    if options.nnodes:
        most = rendezvous.machines_of(options.nnodes)[1]
        said["num_nodes"] = (most, Source("option", "nnodes"))
    path = store.named_or_default(options.config_file)
    file = store.read(path) if path is not None else None
    config = resolve({}, os.environ, file, options=said)
    node = os.environ.get("SLURM_NODEID", "")
    if config["num_nodes"] > 1 and config.origin("node_rank").kind == "default" and node.isdigit():
        config = config.but(node_rank=int(node))  # one launch a node, started by srun
    return config, path


def _torchrun(options: argparse.Namespace) -> Torchrun:
    others: list[str] = []
    for name in _PASSED_ON:
        value = getattr(options, name)
        others += [f"--{name.replace('_', '-')}", value] if value else []
    others += [f"--{name.replace('_', '-')}" for name in _PASSED_ON_ALONE if getattr(options, name)]
    return Torchrun(
        rendezvous.machines_of(options.nnodes)[0] if options.nnodes else 0,
        options.nproc_per_node or "",
        options.standalone,
        options.local_addr or "",
        tuple(others),
    )


def _look_around(config: RunConfig, torchrun: Torchrun) -> Here:
    """Look up what a decision needs, and only that: listing GPUs takes its time."""
    port, host = rendezvous.wanted_port(config), rendezvous.first_host(config)
    is_asked = bool(config["use_port"] or host)
    address = (
        addresses.towards(host, port) if host and rendezvous.is_wanted(config, torchrun) else ""
    )
    return Here(
        env=os.environ,
        devices=[] if config["device"] == "cpu" else accelerators(),
        num_cores=usable_cores(),
        address=address,
        interface=addresses.talking_through(address) if address else {},
        busy_ports=(port,) if is_asked and is_busy(port) else (),
        has_open_mpi=bool(config["mpirun_hostfile"]) and _is_open_mpi(),
    )


def _is_open_mpi() -> bool:
    import subprocess

    try:
        said = subprocess.run(
            ["mpirun", "--version"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "Open MPI" in said.stdout


# ── what is said ──────────────────────────────────────────────────────────────────────────────


def _plan(way: Way, said: Iterable[str], config: RunConfig, path: Path | None) -> list[str]:
    """Write what would be started, for people; the command line can be pasted into a shell."""
    times = f", {way.num_ranks} times" if way.who == SIDE_BY_SIDE else ""
    port = way.port or "a free port"
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} if way.who == SIDE_BY_SIDE else {}
    env: Mapping[str, Any] = {**places, **way.env}
    removed = [name for name in way.without if name in os.environ and name not in env]
    return [
        f"{way.headline}: {way.who}",
        *said,
        "",
        f"command{times}",
        f"  {shlex.join(way.words)}",
        "",
        "environment",
        *(f"  {name}={value}" for name, value in sorted(env.items())),
        *(f"  {name} is taken out" for name in removed),
        "",
        f"file: {path or 'none'}",
        *show.lines(config),
    ]


# ── help ──────────────────────────────────────────────────────────────────────────────────────


def _formatter(base: Any) -> Any:
    class Examples(base):  # type: ignore[misc]
        """Help that leaves the lines of the examples as they are."""

        def _fill_text(self, text: str, width: int, indent: str) -> str:
            return text if "\n" in text else str(super()._fill_text(text, width, indent))

    return Examples


class _HelpAll(argparse.Action):
    """Print the help with what ``_fold`` took out of it."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        for action, help in self.const.items():
            action.help = help
        parser.print_help()
        parser.exit()


def _fold(parser: argparse.ArgumentParser) -> None:
    """Keep the help short: options of a kind that few need are listed by --help_all only."""
    titles = {SECTIONS[name] for name in SECTIONS if name not in _SHOWN}
    hidden = {f"setting:{name}" for name in (*_OF_NOTEBOOKS, *_DETAILS)}
    hidden |= {*_PASSED_ON, *_PASSED_ON_ALONE}
    folded: dict[argparse.Action, str | None] = {}
    for group in parser._action_groups:
        for action in group._group_actions:
            if isinstance(action, _HelpAll):
                action.const = folded
            elif group.title in titles or action.dest in hidden:
                folded[action] = action.help
                action.help = argparse.SUPPRESS

"""``notebook-accel config``: ask what to train on, and keep the answers in a file.

Without a word it asks; with options it writes them down without asking. ``default``, ``show``,
``update`` and ``validate`` work on the same files, ours or Accelerate's.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from notebook_accel.cli.asking import asker
from notebook_accel.cli.parsing import sentence
from notebook_accel.cli.wizard import detected, interview
from notebook_accel.config import show as shown
from notebook_accel.config import store
from notebook_accel.config.documents import entries
from notebook_accel.config.missing import refuse_missing_files, refuse_without_address
from notebook_accel.config.options import add_options, chosen
from notebook_accel.config.resolve import RunConfig, resolve
from notebook_accel.config.settings import SECTIONS, SETTINGS
from notebook_accel.config.words import counted
from notebook_accel.errors import ConfigError
from notebook_accel.launch.machine import read_machine

_SHOWN = ("run", "machines")
_MORE = (
    "Every other setting is taken too (--zero_stage, --fsdp_version, ...): "
    "`notebook-accel config show --all` lists them."
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command and of those below it."""
    _declare(parser, ask)
    below = parser.add_subparsers(title="commands")
    parser.usage = f"{parser.prog} [{' | '.join(_BELOW)}] [options]"
    for name, (act, help) in _BELOW.items():
        command = below.add_parser(name, help=help, description=sentence(help))
        _declare(command, act)
        command.add_argument(
            "config_file", nargs="?", metavar="FILE", default=argparse.SUPPRESS,
            help="the same as --config_file FILE",
        )  # fmt: skip
        if act is show:
            command.add_argument("--all", action="store_true", help="also what has its default")
            command.add_argument("--json", action="store_true", help="print JSON")
    parser._action_groups.insert(0, parser._action_groups.pop())  # commands before options


def run(options: argparse.Namespace) -> int:
    """Do what was asked for: questions, if nothing was."""
    code: int = options.act(options)
    return code


def ask(options: argparse.Namespace) -> int:
    """Write a file from options, or from the answers to questions if there are no options."""
    path = _path(options)
    given = chosen(options)
    if given:
        _keep(path)
        return _write(RunConfig.of(given), path, options)
    machine, put = read_machine(), asker()
    answers = _before(path, _named(options) is None)
    while True:
        answers = interview(machine, put, answers)
        try:
            config = RunConfig(**answers)
            break
        except ConfigError as error:  # answers that are good each, but not together
            print(f"\n{error}\n\nOnce more, your answers are proposed:")
    return _write(config, path, options)


def default(options: argparse.Namespace) -> int:
    """Write what this machine suggests, without asking."""
    path = _path(options)
    if path.exists() and not chosen(options):  # a setup script may run twice
        print(f"{_short(path)} is there already and stays as it is")
        return 0
    _keep(path)
    return _write(resolve(detected(read_machine()), {}, options=chosen(options)), path, options)


def show(options: argparse.Namespace) -> int:
    """Print each value and where it came from: option > environment > file > default."""
    path = store.named_or_default(_named(options))
    file = store.read(path) if path is not None else None
    config = resolve({}, file=file, options=chosen(options))
    if options.json:
        names = SETTINGS if options.all else config.given()
        kept = {name: {"value": _bare(config, name), "from": config.source(name)} for name in names}
        print(json.dumps({"file": None if path is None else str(path), "settings": kept}, indent=2))
        return 0
    print(f"file: {'none' if path is None else _short(path)}\n")
    lines = shown.lines(config, options.all)
    print("\n".join(lines).replace(f"file {path}, line", "line"))
    return 0


def update(options: argparse.Namespace) -> int:
    """Change values of a file by options, and write it as today's version does.

    Accelerate's file stays one.
    """
    path = store.named_or_default(_named(options))
    if path is None or not path.exists():
        raise ConfigError(
            f"there is no configuration file {'' if path is None else path}".rstrip(),
            "update changes a file that is there",
            "write one first: notebook-accel config, or notebook-accel config default",
        )
    config = resolve({}, {}, store.read(path), options=chosen(options))
    options.accelerate = getattr(options, "accelerate", False) or _is_accelerates(path)
    return _write(config, path, options)


def validate(options: argparse.Namespace) -> int:
    """Read a file and say whether it can be used; all that is wrong is told, each with its line.

    Errors: ConfigError, the last of them.
    """
    path = store.named_or_default(_named(options))
    if path is None:
        raise ConfigError(
            "there is no configuration file",
            f"neither {_short(store.default_path())} nor Accelerate's own is there",
            "name one: --config_file PATH; or write one: notebook-accel config",
        )
    wrong = store.problems(path)
    for error in wrong[:-1]:
        print(f"{type(error).__name__}: {error}\n", file=sys.stderr)
    if wrong:
        raise wrong[-1]
    config = resolve({}, {}, store.read(path), options=chosen(options))
    refuse_missing_files(config)
    refuse_without_address(config)
    number = config.num_local_processes  # raises where ranks and machines do not divide
    count = len(config.given())
    print(f"{_short(path)} is valid: {counted(count, 'setting')}")
    print(f"  processes on each machine: {number or 'one per accelerator'}")
    _tell_coming(config)
    return 0


Act = Callable[[argparse.Namespace], int]
_BELOW: dict[str, tuple[Act, str]] = {
    "default": (default, "write what this machine suggests, without questions"),
    "show": (show, "print each value and where it came from"),
    "update": (update, "change values in a file, and write it in today's form"),
    "validate": (validate, "read a file and name the line of anything wrong in it"),
}


def _declare(parser: argparse.ArgumentParser, act: Act) -> None:
    parser.set_defaults(act=act)
    parser.add_argument(
        "--config_file",
        metavar="PATH",
        default=argparse.SUPPRESS,
        help="the file (default: the one in your configuration folder); .json is JSON",
    )
    parser.add_argument(
        "--accelerate",
        action="store_true",
        default=argparse.SUPPRESS,
        help="write the form that Accelerate reads too",
    )
    add_options(parser, _SHOWN)
    add_options(parser, [name for name in SECTIONS if name not in _SHOWN])
    parser.epilog = _MORE
    for group in parser._action_groups:
        if group.title in [title for name, title in SECTIONS.items() if name not in _SHOWN]:
            for action in group._group_actions:
                action.help = argparse.SUPPRESS
            group.title = None


def _keep(path: Path) -> None:
    """Refuse to write over a file that nobody was asked about."""
    if path.exists():
        raise ConfigError(
            f"{_short(path)} is there already",
            "its settings would be lost",
            "notebook-accel config update, with the same options, changes it; "
            "or remove the file first",
        )


def _before(path: Path, is_default: bool) -> Mapping[str, Any]:
    """Give earlier answers: of the file to write, or of the one that counts until now."""
    source = path if path.exists() else store.find_default() if is_default else None
    if source is None or not source.exists():
        return {}
    becomes = "it is replaced" if source == path else f"{_short(path)} will be written"
    try:
        values = store.read(source).values
    except ConfigError as error:
        print(f"{_short(source)} cannot be used; {becomes}\n  {error.what}\n")
        return {}
    print(f"{_short(source)} is there: its values are proposed; {becomes}.\n")
    return values


def _named(options: argparse.Namespace) -> str | None:
    return getattr(options, "config_file", None)


def _path(options: argparse.Namespace) -> Path:
    name = _named(options)
    return store.default_path() if name is None else Path(name).expanduser()


def _write(config: RunConfig, path: Path, options: argparse.Namespace) -> int:
    left_out = store.write(config, path, accelerate=getattr(options, "accelerate", False))
    print(f"\nwritten to {_short(path)}:")
    rows = [(name, shown.show(name, value)) for name, value in config.given().items()]
    print("\n".join(shown.aligned(rows)))
    if left_out:
        print(f"note: Accelerate's file has no place for {', '.join(left_out)}")
    _tell_coming(config)
    where = "" if path == store.default_path() else f" --config_file {_short(path)}"
    print(f"use it: notebook-accel launch{where} script.py")
    in_cell = "" if path == store.default_path() else f", config={str(path)!r}"
    print(f"        notebook_launcher(main{in_cell})")
    return 0


def _tell_coming(config: RunConfig) -> None:
    for name, value in config.given().items():
        if value in SETTINGS[name].coming:
            print(f"note: {name}={value} is stored, but this version cannot train so yet")


def _is_accelerates(path: Path) -> bool:
    return any(entry.key in ("distributed_type", "compute_environment") for entry in entries(path))


def _bare(config: RunConfig, name: str) -> Any:
    secret = SETTINGS[name].secret and config[name] is not None
    return shown.show(name, config[name]) if secret else config[name]


def _short(path: Path) -> str:
    home = str(Path.home())
    text = str(path)
    return f"~{text[len(home) :]}" if text.startswith(home + os.sep) else text

"""The page ``docs/cli.md``, made from the parsers: ``python -m notebook_accel.cli.manual``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from notebook_accel.cli.completion import everything
from notebook_accel.cli.main import ABOUT, GROUPS, PROG
from notebook_accel.cli.parsing import kind_of, one_spelling, sentence

_TOP = f"""# The command `{PROG}`

<!-- made by `python -m notebook_accel.cli.manual > docs/cli.md`; a test compares them -->

{ABOUT}

`{PROG} COMMAND --help` says the same as this page; `python -m notebook_accel` is the same command.
Options are written with underscores or with hyphens.

Exit codes: 0; 1 when something failed; 2 when what was asked for cannot be; 130 when interrupted.
`launch` passes on its script's.
"""
_SETTINGS = "And every [setting](settings.md) as an option.\n"


def manual() -> str:
    """Write the page."""
    lines = [_TOP]
    below = next(one for one in everything()._actions if one.nargs == argparse.PARSER)
    commands = dict(below.choices or {})
    for title, group in GROUPS.items():
        lines.append(f"## {title[0].upper()}{title[1:]}\n")
        for name, help in group.items():
            lines += [f"### {name}\n", f"{sentence(help)}\n"]
            lines += _command(f"{PROG} {name}", commands[name])
    return "\n".join(lines).rstrip() + "\n"


def _command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    positional = [one for one in parser._actions if not one.option_strings and one.metavar != "..."]
    words = [str(one.metavar or one.dest) for one in positional if one.nargs not in _RESTS]
    yield f"```text\n{' '.join([name, '[options]', *words])}\n```\n"
    rows: list[tuple[str, str]] = []
    has_settings = False
    for action in parser._actions:
        has_settings = has_settings or action.dest.startswith("setting:")
        if action.nargs == argparse.PARSER:
            listed = {one.dest: one.help or "" for one in getattr(action, "_choices_actions", ())}
            rows += [(f"{name} {word}", help) for word, help in listed.items()]
        elif action.dest != "help" and action.help and not action.dest.startswith("setting:"):
            rows.append((_written(action), action.help.replace("%%", "%")))
    if rows:
        cells = [(call.replace("|", "\\|"), help.replace("|", "\\|")) for call, help in rows]
        yield "\n".join(["| | |", "| --- | --- |", *(f"| `{c}` | {h} |" for c, h in cells), ""])
    if has_settings:
        yield _SETTINGS


_RESTS = (argparse.PARSER, argparse.REMAINDER)


def _written(action: argparse.Action) -> str:
    """How an argument is written: its names, and what follows them."""
    if not action.option_strings:
        return str(action.metavar or action.dest)
    names = ", ".join(one_spelling(action.option_strings))
    if action.nargs == 0:
        return names
    listed = "{" + ",".join(map(str, action.choices or ())) + "}"
    return f"{names} {action.metavar or (listed if action.choices else kind_of(action))}"


if __name__ == "__main__":
    sys.stdout.write(manual())

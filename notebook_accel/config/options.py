"""Command-line options of the settings: made from their declarations, read back as values."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from notebook_accel.config.catalogue.setting import Setting
from notebook_accel.config.settings import SECTIONS, SETTINGS
from notebook_accel.config.sources import Source
from notebook_accel.config.values import read

_DEST = "setting:"
_SHORT = {"tee": "-t"}


def add_options(parser: argparse.ArgumentParser, sections: Iterable[str] = tuple(SECTIONS)) -> None:
    """Add the options of all settings of ``sections``, one group a section."""
    for section in sections:
        group = parser.add_argument_group(SECTIONS[section])
        for one in SETTINGS.values():
            if one.section == section:
                _add(group, one)


def chosen(namespace: argparse.Namespace) -> dict[str, Any]:
    """Give the settings whose options were written, as values.

    Errors: ConfigError naming the option.
    """
    found: dict[str, Any] = {}
    for key, written in vars(namespace).items():
        if key.startswith(_DEST):
            flag, text = written
            name = key.removeprefix(_DEST)
            found[name] = read(SETTINGS[name], text, Source("option", flag))
    return found


class _Remember(argparse.Action):
    """Keep the text, and by which of its names an option was written."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        text = self.const if self.nargs == 0 else values
        setattr(namespace, self.dest, (option_string.lstrip("-").replace("-", "_"), text))


def _add(group: argparse._ArgumentGroup, one: Setting) -> None:
    facts: dict[str, Any] = {
        "dest": _DEST + one.name, "default": argparse.SUPPRESS, "action": _Remember,
    }  # fmt: skip
    names = [*([_SHORT[one.name]] if one.name in _SHORT else []), *_both([one.name, *one.flags])]
    help = one.help.replace("%", "%%")
    if one.is_switch:
        group.add_argument(*names, nargs=0, const="true", help=help, **facts)
        group.add_argument(
            *_both([f"no_{name}" for name in (one.name, *one.flags)]), nargs=0, const="false",
            help=argparse.SUPPRESS, **facts,
        )  # fmt: skip
    else:
        group.add_argument(*names, metavar=_metavar(one), help=help, **facts)
    for word in one.words:
        if word.flags:
            group.add_argument(
                *_both(word.flags), nargs=0, const=word.value, help=f"{one.name} {word.value}",
                **facts,
            )  # fmt: skip


def _both(names: Iterable[str]) -> list[str]:
    """Spell each name with underscores and with hyphens."""
    spelled = [f"--{form}" for name in names for form in (name, name.replace("_", "-"))]
    return list(dict.fromkeys(spelled))


def _metavar(one: Setting) -> str:
    listed = ",".join(map(str, one.choices))
    if one.choices and len(listed) <= 40:
        return "{" + listed + "}"
    return {"int": "N", "float": "X", "bool": "YES|NO"}.get(one.kind, one.kind.upper())

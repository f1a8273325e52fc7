"""Command-line options of the settings: made from their declarations, read back as values."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from notebook_accel.config.catalog.setting import Setting
from notebook_accel.config.settings import SECTIONS, SETTINGS
from notebook_accel.config.sources import Found, Source
from notebook_accel.config.values import joint, read
from notebook_accel.errors import ConfigError

_DEST = "setting:"
_SHORT = {"tee": "-t"}


def add_options(parser: argparse.ArgumentParser, sections: Iterable[str] = tuple(SECTIONS)) -> None:
    """Add the options of all settings of ``sections``, one group a section."""
    for section in sections:
        group = parser.add_argument_group(SECTIONS[section])
        for one in SETTINGS.values():
            if one.section == section and one.has_option:
                _add(group, one)


def chosen(namespace: argparse.Namespace) -> Found:
    """Give the settings whose options were written: their values, and by which option.

    Errors: ConfigError naming the options, also where two exclude each other.
    """
    found: Found = {}
    for key, written in vars(namespace).items():
        if key.startswith(_DEST):
            name = key.removeprefix(_DEST)
            said = _together(SETTINGS[name], written)
            if said is not None:
                found[name] = said
    return found


def _together(one: Setting, written: Mapping[str, list[str]]) -> tuple[Any, Source] | None:
    """Read all that was written for a setting: of one option the last counts, a list adds up."""
    together: tuple[Any, Source] | None = None
    for flag, texts in written.items():
        source = Source("option", flag if len(flag) > 1 else one.name)
        if one.kind == "list":
            value = [item for text in texts for item in read(one, text, source) or []]
        else:
            value = read(one, texts[-1], source)
        if value is None:
            continue
        if together is None:
            together = value, source
            continue
        before, first = together
        both = joint(before, value)
        if both is None:
            raise ConfigError(
                f"--{first.name} says {one.name} is {before!r}, but --{flag} says {value!r}",
                "both mean the same setting, and nobody could say which of them counts",
                "write one of the two",
            )
        together = both, source if both == value else first
    return together


class _Remember(argparse.Action):
    """Keep each text, by which of its names an option was written."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        written = getattr(namespace, self.dest, {})
        flag = option_string.lstrip("-").replace("-", "_")
        text = self.const if self.nargs == 0 else values
        texts = [*written.get(flag, []), text]
        setattr(namespace, self.dest, {**written, flag: texts})


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
    if one.choices and len(listed) <= 40 and len(one.name) + len(listed) <= 70:  # of 80 columns
        return "{" + listed + "}"
    return {"int": "N", "float": "X", "bool": "YES|NO"}.get(one.kind, one.kind.upper())

"""What a configuration says, in aligned lines: each value with where it came from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from notebook_accel.config.resolve import RunConfig
from notebook_accel.config.settings import SECTIONS, SETTINGS

_WIDEST = 50


def lines(config: RunConfig, everything: bool = False) -> list[str]:
    """List what was chosen, or with ``everything`` all settings, under the names of sections."""
    rows = {
        section: [
            (name, show(one.name, config[name]), config.source(name))
            for name, one in SETTINGS.items()
            if one.section == section and (everything or name in config.given())
        ]
        for section in SECTIONS
    }
    listed = [row for section in rows.values() for row in section]
    if not listed:
        return ["nothing was chosen: every setting has its default"]
    text: list[str] = []
    written = iter(aligned(listed))
    for section, below in rows.items():
        if below:
            text += ["", SECTIONS[section]] if text else [SECTIONS[section]]
        text += [next(written) for _ in below]
    return text


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Write rows with their columns below each other; what is very long takes no others along."""
    widths = [min(max(map(len, column)), _WIDEST) + 2 for column in zip(*rows, strict=True)]
    return [
        "  " + "".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def show(name: str, value: Any) -> str:
    """Write a value as it is written in a file; a secret is not shown."""
    if SETTINGS[name].secret and value is not None:
        return "(not shown)"
    if value in (None, ""):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)

"""The reference page of all settings: ``python -m notebook_accel.config.page > docs/settings.md``.

A test compares the committed page with what this writes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from notebook_accel.config.settings import SECTIONS, SETTINGS, Setting
from notebook_accel.config.show import show

_HEAD = """\
# Settings

Everything that a launch can be told, in one list. The same declarations make the options of
`notebook-accel launch` and `config`, the questions of the wizard and what the pickers offer.

A value counts in this order: **argument** (or option) > **environment** > **file** > **default**;
`notebook-accel config show` says where each one came from. In Python:
`RunConfig(name=value, ...)`, `notebook_launcher(main, config="file.yaml")`.

A file is YAML or JSON, in the words of this list or in Accelerate's. When a call names none, the
file that `NOTEBOOK_ACCEL_CONFIG` names counts ("off" is none), else `notebook_accel/config.yaml` in
the user's folder for configuration (`~/.config`, `XDG_CONFIG_HOME`), else Accelerate's own.

Options are written with underscores or hyphens. A setting that takes yes or no without a value
(marked *switch*) also has `--no_NAME`. The key is the one of Accelerate's files; the setting's own
name is read as well. Choices marked ° are read and kept, and refused where they would be used:
this version has nothing to carry them out. `num_processes` counts the ranks of all machines, but
as an argument of `notebook_launcher` those of this one.

This page is generated: `python -m notebook_accel.config.page > docs/settings.md`.
"""


def page() -> str:
    """Write the page, one table a section."""
    return "\n".join([_HEAD, *(line for section in SECTIONS for line in _section(section))])


def _section(section: str) -> Iterator[str]:
    yield f"## {SECTIONS[section]}\n"
    yield "| Setting | Meaning | Values | Default | Also as option | Key | Variable |"
    yield "|---|---|---|---|---|---|---|"
    for one in SETTINGS.values():
        if one.section == section:
            yield "| " + " | ".join(_cells(one)) + " |"
    yield ""


def _cells(one: Setting) -> list[str]:
    words = [f"--{flag} ({word.value})" for word in one.words for flag in word.flags]
    variables = [*one.env, *(f"{word.env} ({word.value})" for word in one.words if word.env)]
    keys = [*([one.yaml] if one.yaml else []), *one.keys, *(w.key for w in one.words if w.key)]
    return [
        f"`{one.name}`",
        one.help.replace("|", "\\|") + (f" ({', '.join(one.hardware)})" if one.hardware else ""),
        _values(one),
        show(one.name, one.default),
        _codes([*(f"--{flag}" for flag in one.flags), *words]) if one.has_option else "(none)",
        _codes(keys),
        _codes(variables),
    ]


def _values(one: Setting) -> str:
    if one.choices:
        listed = [f"{choice}°" if choice in one.coming else str(choice) for choice in one.choices]
        return ", ".join([*listed, *(["..."] if one.others else [])])
    if one.kind == "bool":
        return "yes, no" + (" (*switch*)" if one.is_switch else "")
    least = "" if one.at_least is None else f" from {one.at_least:g}"
    above = "" if one.above is None else f" above {one.above:g}"
    most = "" if one.at_most is None else f" to {one.at_most:g}"
    kinds = {"str": "text", "int": "number", "float": "number", "list": "list", "dict": "table"}
    return kinds[one.kind] + least + above + most


def _codes(words: list[str]) -> str:
    return "<br>".join(f"`{word}`" for word in words)


if __name__ == "__main__":
    sys.stdout.write(page())

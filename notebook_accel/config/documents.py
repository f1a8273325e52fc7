"""What stands in a YAML or JSON file, entry by entry with its line, before anybody judges it.

Words are kept as they are written: whether ``no`` is a word or the opposite of yes depends on
the setting that it is for, not on YAML's rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from notebook_accel.errors import ConfigError


@dataclass(frozen=True)
class Entry:
    """One key, with a dot where it lies in another, its value as written, and its line."""

    key: str
    value: Any
    line: int


def entries(path: Path) -> list[Entry]:
    """List what stands in the file.

    Errors: ConfigError with the line, for a file that cannot be read as a table of keys.
    """
    import yaml

    text = _text(path)
    try:
        if path.suffix == ".json":
            json.loads(text)
            text = text.replace("\t", " ")  # YAML reads all of JSON but this
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        _refuse_other_shapes(path, root)
        return list(_flat(path, loader, root, ""))
    except json.JSONDecodeError as error:
        raise _broken(path, error.lineno, "JSON", error.msg) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 0
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise _broken(path, line, "YAML", problem) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise _broken(path, 0, "YAML", str(error).partition("\n")[0]) from None


def _refuse_other_shapes(path: Path, root: Any) -> None:
    if root is None:
        raise ConfigError(
            f"{path} is empty",
            "a configuration file says at least one thing, as `mixed_precision: bf16`",
            f"write `notebook-accel config --config_file {path}`, or delete the file",
        )
    if root.id != "mapping":
        raise ConfigError(
            f"{path}, line {root.start_mark.line + 1}: this is no table of keys and values",
            "each line names a setting and its value",
            "write lines such as `mixed_precision: bf16`",
        )


def _flat(path: Path, loader: Any, node: Any, inside: str) -> Iterator[Entry]:
    _refuse_repeats(path, node)
    loader.flatten_mapping(node)  # what `<<` brings stands first, and is overridden
    for key, value in {key.value: (key, value) for key, value in node.value}.values():
        name, line = f"{inside}{key.value}", key.start_mark.line + 1
        if value.id == "mapping" and not inside and name.endswith("_config"):
            yield from _flat(path, loader, value, f"{name}.")
        else:
            yield Entry(name, _plain(loader, value), line)


def _plain(loader: Any, node: Any) -> Any:
    """Give a word as it is written, a list of such words, or a table as YAML understands it."""
    if node.id == "scalar":
        return None if node.tag == "tag:yaml.org,2002:null" else node.value
    if node.id == "sequence":
        return [_plain(loader, item) for item in node.value]
    return loader.construct_object(node, deep=True)


def _refuse_repeats(path: Path, node: Any) -> None:
    seen: dict[str, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if key.id != "scalar":
            raise ConfigError(
                f"{path}, line {line}: a key is a list or a table",
                "a key names a setting",
                "write a line such as `mixed_precision: bf16`",
            )
        if key.value in seen:
            raise ConfigError(
                f"{path}, line {line}: {key.value} stands here again, first on line "
                f"{seen[key.value]}",
                "YAML lets the last one count and says nothing",
                "delete one of the two lines",
            )
        seen[key.value] = line


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(
            f"there is no configuration file {path}",
            "it was named, so nothing else is read in its place",
            f"correct the path, or write `notebook-accel config --config_file {path}`",
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {(error.strerror or str(error)).lower()}",
            "a configuration file is a file of text that this user may read",
            "name another file",
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is no text: byte {error.start} is not UTF-8",
            "a configuration file is YAML or JSON in UTF-8",
            "name another file, or save this one as UTF-8",
        ) from None


def _broken(path: Path, line: int, language: str, problem: str) -> ConfigError:
    at = f", line {line}" if line else ""
    return ConfigError(
        f"{path}{at} is no {language}: {problem}",
        "from there on nobody can tell what the file says",
        "correct it there, or write a new one by `notebook-accel config`",
    )

"""One value of one setting: read from text, or checked as an argument.

Text (variables, files, options) is read generously: "2", "2.0" and "1e3" are whole numbers, words
count in any case. Arguments are Python values and have to be what they should be.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from notebook_accel.config.booleans import NO, YES
from notebook_accel.config.catalogue.setting import Setting
from notebook_accel.config.sources import ARGUMENT, Source
from notebook_accel.errors import ConfigError

_KINDS = {
    "str": "a word",
    "int": "a whole number",
    "float": "a number",
    "bool": "yes or no",
    "list": "a list",
    "dict": "a table of names and values",
}
_TYPES: dict[str, Any] = {
    "str": str, "int": int, "float": (int, float), "bool": bool, "list": (list, tuple),
    "dict": dict,
}  # fmt: skip


def read(one: Setting, raw: Any, source: Source) -> Any:
    """Read what stands in a variable, a file or an option; None where it says nothing.

    Errors: ConfigError naming the place and what could be written there.
    """
    if raw is None or raw == "":
        return None
    if (isinstance(raw, (list, dict)) and one.kind in ("list", "dict")) or one.name == "device":
        return check(one, _device(raw) if one.name == "device" else raw, source)
    if isinstance(raw, (list, dict)):
        raise _wrong_kind(one, raw, source)
    text = str(raw).strip()
    if text.lower() == "auto" and one.yaml.startswith("deepspeed_config."):
        return None  # DeepSpeed finds it by itself
    spelled = {word.lower(): value for word, value in one.spellings.items()}
    if text.lower() in spelled:
        return spelled[text.lower()]
    value = _READERS[one.kind](one, text, source)
    return check(one, value, source)


def check(one: Setting, value: Any, source: Source = ARGUMENT) -> Any:
    """Give ``value``, plain, if it is possible for the setting.

    Errors: ConfigError.
    """
    value = getattr(value, "value", value)  # an enum of words
    if value is None and (one.optional or one.default is None):
        return None
    if one.name == "device" and not isinstance(value, str):
        return _check_numbers(one, value, source)
    if not isinstance(value, _TYPES[one.kind]) or (isinstance(value, bool) and one.kind != "bool"):
        raise _wrong_kind(one, value, source)
    if one.choices and not (one.others or value in one.choices):
        raise unknown(one, value, one.choices, source)
    least, above = one.at_least, one.above
    if (least is not None and value < least) or (above is not None and not value > above):
        bound = f"at least {least}" if above is None else f"more than {above}"
        raise ConfigError(
            f"{source.quote(one.name, value)} is out of range",
            f"{one.name} must be {bound}",
            f"{source.advise(one.name, 60 if least is None else least)}, or leave it out",
        )
    return value


def unknown(one: Setting, value: Any, choices: Sequence[Any], source: Source) -> ConfigError:
    """Give the error for a value that is none of ``choices``; the nearest one is proposed."""
    from notebook_accel.config.settings import nearest

    words = {str(choice).lower(): choice for choice in choices}
    near = nearest(str(value), words)
    listed = ", ".join(map(str, choices))
    return ConfigError(
        f"{source.quote(one.name, value)} is not known",
        f"{one.name} is one of {listed}",
        source.advise(one.name, words[near]) if near else f"write one of {listed}",
    )


def _number(one: Setting, text: str, source: Source) -> int | float:
    try:
        number = float(text.split(",")[0])  # OMP_NUM_THREADS may have one for each level
    except ValueError:
        raise _wrong_kind(one, text, source) from None
    if one.kind == "float":
        return number
    if not number.is_integer():
        raise _wrong_kind(one, text, source)
    return int(number)


def _yes_or_no(one: Setting, text: str, source: Source) -> bool:
    if text.lower() in YES | NO:
        return text.lower() in YES
    raise _wrong_kind(one, text, source)


def _word(one: Setting, text: str, source: Source) -> str:
    known = {str(choice).lower(): str(choice) for choice in one.choices}
    return known.get(text.lower(), text)


def _list(one: Setting, text: str, source: Source) -> list[str]:
    return [item.strip() for item in text.strip("[]()").split(",") if item.strip()]


def _dict(one: Setting, text: str, source: Source) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _wrong_kind(one, text, source)
    return found


_READERS: dict[str, Any] = {
    "str": _word, "int": _number, "float": _number, "bool": _yes_or_no, "list": _list,
    "dict": _dict,
}  # fmt: skip


def _device(raw: Any) -> Any:
    """Read "cuda", "0" or "0,1"; "all" leaves the choice open."""
    if isinstance(raw, (list, tuple)):
        return [int(item) if str(item).strip().isdigit() else item for item in raw]
    items = [item.strip() for item in str(raw).split(",") if item.strip()]
    if items and all(item.isdigit() for item in items):
        return [int(item) for item in items]
    word = str(raw).strip().lower()
    return None if word == "all" else word


def _check_numbers(one: Setting, value: Any, source: Source) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(i, int) and not isinstance(i, bool) for i in value):
            return value
        raise ConfigError(
            f"{source.quote(one.name, value)} is not a list of GPU numbers",
            "a list picks and orders GPUs by their numbers",
            f"{source.advise(one.name, [0, 1])}, for example",
        )
    raise unknown(one, value, one.choices, source)


def _wrong_kind(one: Setting, value: Any, source: Source) -> ConfigError:
    kind = _KINDS[one.kind] + (" or None" if one.optional and source is ARGUMENT else "")
    examples = {"int": one.at_least or 1, "float": 1.0, "bool": True, "list": ["a", "b"]}
    example = one.choices[0] if one.choices else examples.get(one.kind, one.default)
    return ConfigError(
        f"{source.quote(one.name, value)} is no {one.kind}",
        f"{one.name} is {kind}: {one.help}",
        f"{source.advise(one.name, example)}, for example, or leave it out",
    )

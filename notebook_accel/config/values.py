"""One value of one setting: read from text, or checked as an argument.

Text (variables, files, options) is read generously: "2", "2.0" and "2e0" are whole numbers, words
count in any case. Arguments are Python values and have to be what they should be.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Sequence
from typing import Any

from notebook_accel.config.booleans import NO, YES
from notebook_accel.config.catalog.setting import Setting
from notebook_accel.config.sources import ARGUMENT, Source
from notebook_accel.config.words import kind_of
from notebook_accel.errors import ConfigError

_NEAR = 0.86  # as alike as inductor and inducter, which no two real names are
_NAMES_OF_GPUS = ("GPU-", "MIG-")
_TYPES: dict[str, Any] = {
    "str": str,
    "int": int,
    "float": (int, float),
    "bool": bool,
    "list": (list, tuple),
    "dict": dict,
}


def read(one: Setting, raw: Any, source: Source) -> Any:
    """Read what stands in a variable, a file or an option; None where it says nothing.

    Errors: ConfigError naming the place and what could be written there.
    """
    if raw is None or raw in ("", [], {}):
        return None
    if one.name == "device":
        raw = _device(raw)
    if not isinstance(raw, str):
        return check(one, raw, source)
    text = raw.strip()
    silent = ("none", "null") if one.kind == "str" or one.choices else ("none", "null", "auto")
    if text.lower() in silent and text.lower() not in one.choices:
        return None  # None as other programs write it; auto as DeepSpeed does
    spelled = {word.lower(): value for word, value in one.spellings.items()}
    if text.lower() in spelled:
        return spelled[text.lower()]
    return check(one, _READERS[one.kind](one, text, source), source)


def read_switch(one: Setting, raw: Any, source: Source) -> bool:
    """Read whether a yes-or-no spelling of one of the setting's values says yes.

    Errors: ConfigError.
    """
    switch = Setting(source.name, "", "bool", False, f"it stands for a value of {one.name}")
    return bool(read(switch, raw, source))


def joint(one: Any, other: Any) -> Any:
    """Give what two ways to say the same setting say together; None if they exclude each other."""
    if one == other:
        return one
    kinds = ("cuda", "gpu")  # numbers of GPUs say more than that it is GPUs
    if isinstance(one, list) and other in kinds:
        return one
    return other if isinstance(other, list) and one in kinds else None


def check(one: Setting, value: Any, source: Source = ARGUMENT) -> Any:
    """Give ``value``, plain, if it is possible for the setting.

    Errors: ConfigError.
    """
    value = getattr(value, "value", value)  # an enum of words
    if value is None and one.optional:
        return None
    if one.name == "device":
        return _check_device(one, value, source)
    if one.choices and not one.others and one.kind == "str":
        return check_choice(one.name, value, one.choices, source, one.coming)
    if not isinstance(value, _TYPES[one.kind]) or (isinstance(value, bool) and one.kind != "bool"):
        raise _wrong_kind(one, value, source)
    if one.choices and not one.others:
        return check_choice(one.name, value, one.choices, source, one.coming)
    if one.choices and isinstance(value, str) and _is_misspelt(value, one.choices):
        return check_choice(one.name, value, one.choices, source, one.coming)
    if len(one.env) > 1:
        return _check_items(one, value, source)
    if one.kind in ("int", "float"):
        _check_range(one, value, source)
    return value


def _is_misspelt(word: str, known: Sequence[Any]) -> bool:
    """Tell whether a word that may be another's is one of ours with a slip; digits are versions."""
    letters = {re.sub(r"\d", "", str(choice).lower()) for choice in known}
    plain = re.sub(r"\d", "", word.lower())
    return plain not in letters and bool(difflib.get_close_matches(plain, letters, 1, _NEAR))


def check_choice(
    name: str,
    value: Any,
    choices: Sequence[Any],
    source: Source = ARGUMENT,
    coming: Sequence[Any] = (),
) -> Any:
    """Give ``value`` if it is one of ``choices``; else one that is not ``coming`` is proposed.

    Errors: ConfigError.
    """
    if type(value) in (str, int, bool) or isinstance(value, str):
        found = next((choice for choice in choices if choice == value), None)
        if found is not None and isinstance(found, bool) == isinstance(value, bool):
            return value
    words = {str(choice).lower(): choice for choice in choices if choice not in coming}
    listed = ", ".join(map(source.show, words.values()))
    near = difflib.get_close_matches(str(value).lower(), words, n=1)
    verb = "pass" if source is ARGUMENT else "write"
    raise ConfigError(
        f"{source.quote(name, value)} is not known",
        f"{name} is one of {listed}",
        f"{verb} {source.write(name, words[near[0]])}" if near else f"{verb} one of {listed}",
    )


def _check_range(one: Setting, value: float, source: Source) -> None:
    least, above, most = one.at_least, one.above, one.at_most
    is_low = (least is not None and value < least) or (above is not None and not value > above)
    if is_low or (most is not None and value > most):
        bound = f"at least {least}" if above is None else f"more than {above}"
        bound = f"from {least} to {most}" if most is not None else bound
        example = (60 if one.name.endswith("_s") else one.default) if least is None else least
        possible = "a positive number" if example is None else source.write(one.name, example)
        raise ConfigError(
            f"{source.quote(one.name, value)} is out of range",
            f"{one.name} must be {bound}: {one.help}",
            f"write {possible}, or leave it out" if is_low else "write another, or leave it out",
        )
    if not math.isfinite(value):
        raise ConfigError(
            f"{source.quote(one.name, value)} is out of range",
            f"{one.name} must be a finite number: {one.help}",
            f"leave {one.name} out, or write a number",
        )


def _check_device(one: Setting, value: Any, source: Source) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(i, int) and not isinstance(i, bool) for i in value):
            return value
        raise ConfigError(
            f"{source.quote(one.name, value)} is not a list of GPU numbers",
            "a list picks and orders GPUs by their numbers",
            f"write, for example, {source.write(one.name, [0, 1])}",
        )
    if isinstance(value, str) and re.fullmatch(r"fake(:\d+)?", value):
        return value
    if isinstance(value, str) and value.startswith("cuda:"):
        number = value.removeprefix("cuda:")
        raise ConfigError(
            f"{source.quote(one.name, value)} is not known",
            "one GPU is picked by its number",
            f"write {source.write(one.name, int(number) if number.isdigit() else 0)}",
        )
    if isinstance(value, str) and value.upper().startswith(_NAMES_OF_GPUS):
        raise ConfigError(
            f"{source.quote(one.name, value)} is the name of a GPU",
            "GPUs are picked by their numbers, which count what CUDA_VISIBLE_DEVICES leaves",
            f"set CUDA_VISIBLE_DEVICES={value}, and leave it out here",
        )
    return check_choice(one.name, value, one.choices, source, one.coming)


def _check_items(one: Setting, value: Any, source: Source) -> list[bool]:
    """Check a list that has one yes or no for each of its variables."""
    words = [str(item).strip().lower() for item in value]
    if len(words) != len(one.env) or not all(word in YES | NO for word in words):
        raise ConfigError(
            f"{source.quote(one.name, value)} cannot be",
            f"{one.name} has {len(one.env)} items: {one.help}",
            f"write {source.write(one.name, [False] * len(one.env))}, for example",
        )
    return [word in YES for word in words]


def _wrong_kind(one: Setting, value: Any, source: Source) -> ConfigError:
    kind = {
        "str": "a word",
        "int": "a whole number",
        "float": "a number of seconds" if one.name.endswith("_s") else "a number",
        "bool": "yes or no",
        "list": "a list",
        "dict": "a table of names and values",
    }[one.kind]
    if source is ARGUMENT:
        is_what = f"is {kind_of(value)}"
        kind += " or None" if one.optional else ""
    else:
        is_what = f"is not {kind}"
    return ConfigError(
        f"{source.quote(one.name, value)} {is_what}",
        f"{one.name} is {kind}: {one.help}",
        f"write {source.write(one.name, _meant(one, value))}",
    )


def _meant(one: Setting, value: Any) -> Any:
    """Find what was probably meant: 2 for "2" and for 2.0; a plain example for anything else."""
    if one.kind in ("int", "float"):
        whole = one.kind == "int"
        example = one.default if one.default is not None else (2 if whole else 60)
        try:
            number = float(value)
        except (TypeError, ValueError):
            return example
        if isinstance(value, bool):
            return 1
        return int(number) if number.is_integer() else (example if whole else number)
    if one.choices:
        return one.choices[0]
    return {"bool": True, "list": ["a", "b"], "dict": {}}.get(one.kind, str(value))


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
    """Read one item, or several in brackets."""
    if len(one.env) < 2 and text[:1] not in "[(":
        return [text]
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
    "str": _word,
    "int": _number,
    "float": _number,
    "bool": _yes_or_no,
    "list": _list,
    "dict": _dict,
}


def _device(raw: Any) -> Any:
    """Read "cuda", "0" or "0,1"; "all" leaves the choice open."""
    items = raw if isinstance(raw, (list, tuple)) else str(raw).split(",")
    words = [str(item).strip() for item in items if str(item).strip()]
    if words and all(word.isdigit() for word in words):
        return [int(word) for word in words]
    if isinstance(raw, (list, tuple)):
        return raw
    word = str(raw).strip()
    if word.upper().startswith(_NAMES_OF_GPUS):
        return word
    return None if word.lower() == "all" else word.lower()

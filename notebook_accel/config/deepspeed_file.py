"""DeepSpeed's own configuration: read from wherever it is, and asked by dotted names."""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from notebook_accel.config.words import kind_of
from notebook_accel.errors import ConfigError

AUTO = "auto"


class HfDeepSpeedConfig:
    """A configuration of DeepSpeed's, asked by names like "zero_optimization.stage".

    It is given as the path of a JSON file, as a mapping, as the JSON in base64, or as an object
    whose ``config`` is one of these; ``called`` is what a person passed it as.

    Errors: ConfigError for what is none of them.
    """

    def __init__(self, config_file_or_dict: Any, called: str = "hf_ds_config") -> None:
        self.config: dict[str, Any] = read_own(config_file_or_dict, called)

    def find_config_node(self, ds_key_long: str) -> tuple[dict[str, Any] | None, str]:
        """Give the section that a name lies in (None without it), and the last part of the name."""
        *sections, last = ds_key_long.split(".")
        node: Any = self.config
        for section in sections:
            node = node.get(section)
            if not isinstance(node, dict):
                return None, last
        return node, last

    def get_value(self, ds_key_long: str, default: Any = None) -> Any:
        """Give a value, ``default`` if there is none."""
        node, last = self.find_config_node(ds_key_long)
        return default if node is None else node.get(last, default)

    def del_config_sub_tree(self, ds_key_long: str, must_exist: bool = False) -> None:
        """Take a value or a whole section out.

        Errors: ConfigError if it ``must_exist`` and does not.
        """
        node, last = self.find_config_node(ds_key_long)
        if node is not None and last in node:
            del node[last]
        elif must_exist:
            raise ConfigError(
                f"there is no {ds_key_long} in DeepSpeed's configuration",
                "it was to be taken out, and had to be there",
                "check the name, or leave must_exist out",
            )

    def is_auto(self, ds_key_long: str) -> bool:
        """Tell whether a value is left to whoever runs it."""
        return bool(self.get_value(ds_key_long) == AUTO)

    def is_true(self, ds_key_long: str) -> bool:
        """Tell whether a value is there, and true."""
        return bool(self.get_value(ds_key_long))

    def is_false(self, ds_key_long: str) -> bool:
        """Tell whether a value is there, and false."""
        value = self.get_value(ds_key_long)
        return value is not None and not value

    def is_zero2(self) -> bool:
        """Tell whether gradients are cut up, and parameters are not."""
        return bool(self.get_value("zero_optimization.stage") == 2)

    def is_zero3(self) -> bool:
        """Tell whether parameters are cut up too."""
        return bool(self.get_value("zero_optimization.stage") == 3)

    def is_offload(self) -> bool:
        """Tell whether something lies in the memory of the CPU or on a disk."""
        places = (
            self.get_value(f"zero_optimization.offload_{what}.device")
            for what in ("param", "optimizer")
        )
        return any(place in ("cpu", "nvme") for place in places)


def read_own(given: Any, called: str = "hf_ds_config") -> dict[str, Any]:
    """Read a configuration of DeepSpeed's; a mapping is taken as it is, and not copied.

    Errors: ConfigError for what is none.
    """
    given = getattr(given, "config", given)
    if isinstance(given, dict):
        return given
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, (str, os.PathLike)):
        path = Path(given)
        is_file = len(os.fspath(given)) < 1000 and path.is_file()
        text = path.read_text() if is_file else _decoded(os.fspath(given), called)
        return _parsed(text, str(path) if is_file else called)
    raise ConfigError(
        f"{called} is {kind_of(given)}",
        "DeepSpeed's configuration is JSON",
        f'write {called}="ds_config.json", or the same as a dict',
    )


def _decoded(text: str, called: str) -> str:
    try:
        return base64.urlsafe_b64decode(text).decode()
    except (binascii.Error, ValueError):
        short = text if len(text) < 60 else f"{text[:57]}..."
        raise ConfigError(
            f"{called}={short!r} is no file",
            f"DeepSpeed's configuration was looked for in {os.getcwd()}",
            "write the path of its JSON file, or the same as a dict",
        ) from None


def _parsed(text: str, name: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{name}, line {error.lineno}: {error.msg}",
            "DeepSpeed's configuration is JSON",
            "correct that line",
        ) from None
    if not isinstance(found, dict):
        raise ConfigError(
            f"{name} holds {kind_of(found)}",
            "DeepSpeed's configuration is a JSON object of sections",
            'write {"zero_optimization": {"stage": 2}}',
        )
    return found

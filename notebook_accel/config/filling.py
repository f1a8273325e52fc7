"""Fields that a person left at None, and the settings that then speak for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from notebook_accel.config.resolve import resolve


def fill(plugin: Any, settings: Mapping[str, str], defaults: bool = True) -> None:
    """Give each field of ``plugin`` that is None the value of its setting in the environment.

    ``settings`` names the setting of each field. Where the environment says nothing, the field gets
    the setting's default, or without ``defaults`` stays None.

    Errors: ConfigError for a variable that says what cannot be.
    """
    found = resolve({})
    said = found.given()
    for name, setting in settings.items():
        if getattr(plugin, name) is None and (defaults or setting in said):
            setattr(plugin, name, found[setting])

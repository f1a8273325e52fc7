"""Settings in environment variables, under Accelerate's names: read, and written for workers."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from notebook_accel.config.catalog.setting import Setting
from notebook_accel.config.settings import SETTINGS, by_variable
from notebook_accel.config.sources import Source
from notebook_accel.config.values import check, joint, read, read_switch
from notebook_accel.errors import ConfigError

if TYPE_CHECKING:
    from notebook_accel.config.resolve import RunConfig

# Section -> what has to be so for its settings to be in use: then their defaults are written too.
IN_USE = {
    "fsdp": ("strategy", "fsdp"),
    "deepspeed": ("strategy", "deepspeed"),
    "megatron": ("strategy", "megatron_lm"),
    "parallelism": ("use_parallelism_config", True),
}
_FAMILIES = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "MEGATRON_LM_")
_DEEPSPEEDS = "deepspeed_config."


def from_variables(env: Mapping[str, str]) -> dict[str, tuple[Any, Source]]:
    """Read all settings that ``env`` has; an empty variable says nothing.

    Errors: ConfigError naming the variable.
    """
    found: dict[str, tuple[Any, Source]] = {}
    for variable in by_variable().keys() & env.keys():
        one = by_variable()[variable]
        source = Source("environment", variable)
        if len(one.env) > 1 and one.kind == "list":
            value = check(one, [env.get(each) or "no" for each in one.env], source)
        else:
            value = _read(one, variable, env[variable], source)
        if value is None:
            continue
        if one.name in found and joint(found[one.name][0], value) is None:
            raise ConfigError(
                f"{found[one.name][1].name} and {variable} are both set",
                f"both say what {one.name} is, and they differ",
                f"unset {variable}, or the other",
            )
        found[one.name] = (value, source)
    return found


def to_variables(config: RunConfig) -> dict[str, str]:
    """Write what was chosen, and the defaults of the sections that are in use."""
    written: dict[str, str] = {}
    for one in SETTINGS.values():
        in_use = _is_in_use(one.section, config)
        value = config[one.name]
        if value is None or one.secret or not (in_use or one.name in config.given()):
            continue
        for word in one.words:
            if word.env and word.value == value:
                written[word.env] = "true"
        if len(one.env) > 1:
            written.update(zip(one.env, map(_text, value), strict=False))
        elif one.env:
            written[one.env[0]] = _text(value)
    if config["strategy"] == "deepspeed":
        fields = [name for name in config.given() if SETTINGS[name].yaml.startswith(_DEEPSPEEDS)]
        written[SETTINGS["deepspeed_fields"].env[0]] = ",".join(fields)
    return written


def strangers(env: Mapping[str, str]) -> list[tuple[str, str]]:
    """Find variables that are probably misspelt: each with the one that was meant."""
    found = []
    for variable in env:
        if variable.startswith(_FAMILIES) and variable not in by_variable():
            near = difflib.get_close_matches(variable, by_variable(), n=1, cutoff=0.92)
            found += [(variable, name) for name in near if name not in env]
    return found


def _is_in_use(section: str, config: RunConfig) -> bool:
    if section == "deepspeed" and config["deepspeed_config_file"]:
        return False  # DeepSpeed's own file says all of it
    name, needed = IN_USE.get(section, ("", None))
    return bool(name) and config[name] == needed


def _read(one: Setting, variable: str, text: str, source: Source) -> Any:
    for word in one.words:
        if word.env == variable:
            return word.value if read_switch(one, text, source) else None
    return read(one, text, source)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(map(_text, value))
    return str(value)

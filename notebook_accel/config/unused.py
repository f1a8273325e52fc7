"""Settings that were chosen and count for nothing, because what they are for was not chosen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from notebook_accel.config.absent import idle
from notebook_accel.config.settings import SETTINGS
from notebook_accel.config.variables import IN_USE

if TYPE_CHECKING:
    from notebook_accel.config.resolve import RunConfig

# A plugin that a script makes itself reads the same settings.
_PLUGINS = {
    "fsdp": "FullyShardedDataParallelPlugin",
    "deepspeed": "DeepSpeedPlugin",
    "megatron": "MegatronLMPlugin",
}


def unused(config: RunConfig) -> Iterator[str]:
    """Say of each kind of settings that is not in use what would put it to use.

    Every setting is written as it stands in the place that it comes from.
    """
    silent = idle(config)
    for section, (name, needed) in IN_USE.items():
        listed = [
            each
            for each, value in config.given().items()
            if SETTINGS[each].section == section
            and value != SETTINGS[each].default
            and each not in (name, *silent)
        ]
        if not listed or config[name] == needed:
            continue
        written = ", ".join(config.write(each, config[each]) for each in listed)
        place = config.origin(listed[0]).like(name)
        plugin = f" or a {_PLUGINS[section]} of the script" if section in _PLUGINS else ""
        verb = "counts" if len(listed) == 1 else "count"
        yield f"{written} {verb} only with {place.write(name, needed)}{plugin}"

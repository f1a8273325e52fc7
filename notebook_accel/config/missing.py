"""What a configuration names and is not there: found before anything starts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from notebook_accel.errors import ConfigError

if TYPE_CHECKING:
    from notebook_accel.config.resolve import RunConfig

_HOSTFILES = ("deepspeed_hostfile", "mpirun_hostfile")


def refuse_missing_files(config: RunConfig) -> None:
    """Refuse a file that counts and is not there.

    Errors: ConfigError naming it and where it was asked for.
    """
    for name in ("deepspeed_config_file", *_HOSTFILES):
        counts = name in _HOSTFILES or config.strategy == "deepspeed"
        if config[name] and counts and not os.path.isfile(config[name]):
            origin = config.origin(name)
            raise ConfigError(
                f"{origin.quote(name, config[name])}: there is no such file",
                f"it is looked for from {os.getcwd()}",
                f"correct the path, or leave {origin.call(name)} out",
            )


def refuse_without_address(config: RunConfig) -> None:
    """Refuse several machines that nobody told where to meet.

    Errors: ConfigError.
    """
    starts_itself = any(config[name] for name in _HOSTFILES)
    if config.num_nodes > 1 and not (config.master_addr or config.rdzv_endpoint or starts_itself):
        raise no_address(config)


def no_address(config: RunConfig) -> ConfigError:
    """Give the error for several machines without the first one's address."""
    quoted = config.origin("num_nodes").quote("num_nodes", config.num_nodes)
    return ConfigError(
        f"{quoted}, without an address of the first machine",
        "the machines find each other at the first one, whose address all must know",
        f"write {config.write('master_addr', 'ADDRESS', 'num_nodes')}, the same on every machine",
    )

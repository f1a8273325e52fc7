"""How machines meet: Accelerate's options and torchrun's, as the words that torch's agent takes."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from notebook_accel.config.missing import no_address
from notebook_accel.config.placement import DEFAULT_PORT
from notebook_accel.config.resolve import RunConfig
from notebook_accel.errors import ConfigError
from notebook_accel.launch.addresses import NOT_FOUND, is_loopback, is_number

if TYPE_CHECKING:
    from notebook_accel.launch.devices import Device

_OF_TORCH = ("static", "c10d")  # the backends that need no server of somebody else's
RUN_PATH = "--run-path"
_LAST_PORT = 65535
RENDEZVOUS_PORT = 29400  # torch's default, where an endpoint names none


@dataclass(frozen=True)
class Torchrun:
    """Torchrun's options that are no settings; ``others`` are passed on as they are.

    ``least`` is how many machines are enough to go on, 0 for all; ``per_machine`` is how many
    ranks each runs, a number or a word for it.
    """

    least: int = 0
    per_machine: str = ""
    is_standalone: bool = False
    local_addr: str = ""
    others: tuple[str, ...] = ()

    @property
    def is_run_path(self) -> bool:
        """Whether torch runs the script in the process that it starts for a rank."""
        return RUN_PATH in self.others


@dataclass(frozen=True)
class Meeting:
    """The agent's options; ``machines`` says which machines meet, in words."""

    words: tuple[str, ...]
    machines: str
    is_one_machine: bool
    notes: tuple[str, ...] = ()


def is_wanted(config: RunConfig, torchrun: Torchrun) -> bool:
    """Tell whether anything needs torch's agent: machines, restarts, a rendezvous, log files."""
    return (
        config["num_nodes"] > 1
        or torchrun.is_standalone
        or bool(torchrun.others)
        or config["max_restarts"] > 0
        or config["rdzv_backend"] != "static"
        or bool(config["rdzv_endpoint"] or config["tee"] or config["log_dir"])
    )


def local_count(
    config: RunConfig, torchrun: Torchrun, devices: Sequence[Device], num_cores: int
) -> int | None:
    """Give how many ranks this machine was asked to run; None where nobody said.

    Errors: ConfigError where counts contradict each other or do not divide.
    """
    word = torchrun.per_machine
    if not word:
        return config.num_local_processes
    if config.origin("num_processes").is_asked:
        total = config.write("num_processes", config["num_processes"])
        raise ConfigError(
            f"--nproc_per_node {word} and {total} are both given",
            "the first counts the ranks of each machine, the second those of all machines",
            "leave one of them out",
        )
    if word in ("auto", "gpu"):
        num_gpus = sum(1 for one in devices if one.kind == "cuda")
        return num_gpus or None
    if word == "cpu":
        return num_cores
    if not word.isdigit() or int(word) < 1:
        raise ConfigError(
            f"--nproc_per_node {word} is no count",
            "it is how many ranks each machine runs: a number, auto, gpu or cpu",
            "write --nproc_per_node 2, for example",
        )
    return int(word)


def meeting(
    config: RunConfig,
    torchrun: Torchrun,
    num_local: int,
    address: str = "",
    busy_ports: Collection[int] = (),
) -> Meeting:
    """Write the agent's options; ``address`` is this machine's, as the first one sees it.

    Errors: ConfigError where the first machine's address is missing, or its port is in use.
    """
    most = config["num_nodes"]
    least = torchrun.least or most
    words = _common(config, torchrun, num_local)
    backend, endpoint = config["rdzv_backend"], config["rdzv_endpoint"]
    if torchrun.is_standalone or (most == 1 and backend in _OF_TORCH and not endpoint):
        return _on_one(words, config["use_port"], busy_ports)
    if backend == "static" and (least != most or (endpoint and not _says_rank(config))):
        backend = "c10d"  # numbers given beforehand do not fit machines that come and go
    host, port = _first_machine(config, endpoint, most)
    is_first = config["node_rank"] == 0 if _says_rank(config) else address == host
    if port in busy_ports and is_first and backend == "static":  # by c10d agents may share a port
        raise ConfigError(
            f"port {port} of this machine, where the others are to meet it, is in use",
            "another program listens there; it is not changed by itself, for all machines know it",
            f"write {config.write('use_port', 'PORT', 'num_nodes')} with a free port, the same on "
            "every machine",
        )
    words += ["--rdzv-backend", backend, "--rdzv-id", config["rdzv_id"]]
    local_addr = torchrun.local_addr or address
    words += ["--local-addr", local_addr] if local_addr else []
    if backend == "static":
        words += ["--node-rank", str(config["node_rank"]), "--master-addr", host]
        words += ["--master-port", str(port)]
    else:
        words += ["--rdzv-endpoint", f"{host}:{port}"]
    conf = config["rdzv_conf"]
    if backend == "c10d" and address == host and "is_host" not in conf and not is_loopback(host):
        conf = ",".join(filter(None, [conf, "is_host=1"]))  # torch knows itself by name only
    words += ["--rdzv-conf", conf] if conf else []
    machines = f"{least} to {most} machines" if least != most else f"each of {most} machines"
    if backend == "static":
        machines = f"machine {config['node_rank']} of {most}"
    machines += f", which meet at {host}:{port}"
    return Meeting(tuple(words), machines, False, _doubts(config, host, address))


def _common(config: RunConfig, torchrun: Torchrun, num_local: int) -> list[str]:
    most = config["num_nodes"]
    least = torchrun.least or most
    words = [
        *("--nnodes", f"{least}:{most}" if least != most else str(most)),
        *("--nproc-per-node", str(num_local)),
        *("--max-restarts", str(config["max_restarts"])),
        *("--monitor-interval", str(config["monitor_interval"])),
        *("--role", config["role"]),
    ]
    for option, name in (("--tee", "tee"), ("--log-dir", "log_dir")):
        words += [option, config[name]] if config[name] else []
    return [*words, *torchrun.others]


def _on_one(words: list[str], port: int | None, busy_ports: Collection[int]) -> Meeting:
    if port and port not in busy_ports:
        words = [*words, "--rdzv-backend", "static", "--master-port", str(port)]
    else:
        words = [*words, "--standalone"]
    return Meeting(tuple(words), "this machine", True, chosen_anew(port, busy_ports))


def chosen_anew(port: int | None, busy_ports: Collection[int]) -> tuple[str, ...]:
    """Say that a port in use was not taken, if it was one."""
    return (f"port {port} is in use: a free one was chosen",) if port in busy_ports else ()


def wanted_port(config: RunConfig) -> int:
    """Give the port at which the first machine is to be met: what has to be free there."""
    _, port = _endpoint(config)
    return port if config["rdzv_endpoint"] else int(config["use_port"] or DEFAULT_PORT)


def _endpoint(config: RunConfig) -> tuple[str, int]:
    """Give host and port of --rdzv_endpoint, with torch's own default port."""
    host, _, port = config["rdzv_endpoint"].rpartition(":")
    if not (host and port.isdigit()):
        return config["rdzv_endpoint"], RENDEZVOUS_PORT
    if int(port) > _LAST_PORT:
        raise ConfigError(
            f"{config.origin('rdzv_endpoint').quote('rdzv_endpoint', config['rdzv_endpoint'])} "
            "has no port",
            f"ports are numbers from 1 to {_LAST_PORT}",
            f"write {config.write('rdzv_endpoint', f'{host}:{RENDEZVOUS_PORT}')}, for example",
        )
    return host, int(port)


def machines_of(nnodes: str) -> tuple[int, int]:
    """Read torchrun's count of machines: "2", or "1:4" for the least and the most.

    Errors: ConfigError for anything else.
    """
    found = re.fullmatch(r"(\d+)(?::(\d+))?", nnodes)
    least = int(found[1]) if found else 0
    most = int(found[2] or found[1]) if found else 0
    if not 0 < least <= most:
        raise ConfigError(
            f"--nnodes {nnodes} is no count of machines",
            "it is a number, or the least and the most that may take part",
            "write --nnodes 2 or --nnodes 1:4",
        )
    return least, most


def _doubts(config: RunConfig, host: str, address: str) -> tuple[str, ...]:
    """Note that the first machine is not found, or that this is not it, though nobody said so."""
    if not address and not is_number(host):
        return (NOT_FOUND.format(host=host),)
    is_other = is_number(host) and address not in ("", host) and host != "localhost"
    if _says_rank(config) or config["rdzv_backend"] != "static" or not is_other:
        return ()
    return (
        f"this machine is {address} and not {host}: "
        f"unless it is the first all the same, write its {config.call('node_rank', 'num_nodes')}",
    )


def _says_rank(config: RunConfig) -> bool:
    return config.origin("node_rank").kind != "default"


def _first_machine(config: RunConfig, endpoint: str, most: int) -> tuple[str, int]:
    """Give host and port at which the machines meet: the fixed default if no port was given."""
    if endpoint:
        return _endpoint(config)
    host = config["master_addr"]
    if host is None:
        raise no_address(config)
    if config["use_port"] == 0:
        raise ConfigError(
            f"{config.origin('use_port').quote('use_port', 0)} on {most} machines",
            "a free port chosen on one machine is not known on the others",
            f"write a port that is free on {host}, or leave it out for {DEFAULT_PORT}",
        )
    return host, config["use_port"] or DEFAULT_PORT


def first_host(config: RunConfig) -> str:
    """Give the address that the machines are to meet at; "" where nobody said."""
    return _endpoint(config)[0] or str(config["master_addr"] or "")

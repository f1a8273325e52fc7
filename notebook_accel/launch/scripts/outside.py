"""Other programs that start ranks on several machines: mpirun, and DeepSpeed's own launcher.

They pass no environment on, each in another way: what the ranks must know is written before the
script's own words, by ``env``, which does the same under all of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from notebook_accel.config.missing import no_address
from notebook_accel.config.placement import DEFAULT_PORT
from notebook_accel.config.resolve import RunConfig
from notebook_accel.launch.scripts.program import Program


def mpirun(
    program: Program, config: RunConfig, env: Mapping[str, str], is_open_mpi: bool
) -> tuple[str, ...]:
    """Write the command line of mpirun: Open MPI's, or that of MPICH and Intel MPI.

    Errors: ConfigError for machines without an address to meet at.
    """
    words = ["mpirun", "-hostfile", config["mpirun_hostfile"]]
    if config["num_processes"] is not None:
        words += ["-np", str(config["num_processes"])]
        if config["num_nodes"] > 1:
            each = config.num_local_processes
            words += ["--map-by", f"ppr:{each}:node"] if is_open_mpi else ["-ppn", str(each)]
    told = {
        **env,
        "MASTER_ADDR": _address(config),
        "MASTER_PORT": str(config["use_port"] or DEFAULT_PORT),
    }
    if config["mpirun_ccl"]:
        told["CCL_WORKER_COUNT"] = str(config["mpirun_ccl"])
    return (*words, *_with(told), *program.words(unbuffered=True))


def deepspeed(
    program: Program, config: RunConfig, env: Mapping[str, str], num_local: int
) -> tuple[str, ...]:
    """Write the command line of DeepSpeed's launcher."""
    words = ["deepspeed", "--no_local_rank"]
    for option, name in (
        ("--hostfile", "deepspeed_hostfile"),
        ("--launcher", "deepspeed_multinode_launcher"),
        ("--include", "deepspeed_inclusion_filter"),
        ("--exclude", "deepspeed_exclusion_filter"),
    ):
        if config[name]:
            words += [option, config[name]]
    if config["num_nodes"] > 1:
        words += ["--num_nodes", str(config["num_nodes"])]
    if not (config["deepspeed_inclusion_filter"] or config["deepspeed_exclusion_filter"]):
        words += ["--num_gpus", str(num_local)]
    if config["master_addr"]:
        words += ["--master_addr", config["master_addr"]]
    words += ["--master_port", str(config["use_port"] or DEFAULT_PORT)]
    return (*words, "--no_python", *_with(env), *program.words(unbuffered=True))


def _with(env: Mapping[str, str]) -> list[str]:
    return ["env", *(f"{name}={value}" for name, value in sorted(env.items()))] if env else []


def _address(config: RunConfig) -> str:
    if config["master_addr"]:
        return str(config["master_addr"])
    if config["num_nodes"] == 1:
        return "127.0.0.1"
    raise no_address(config)

"""A process's place, as torchrun, Slurm and the kinds of mpirun tell it."""

from __future__ import annotations

import pytest

from notebook_accel.config.placement import Placement, Told, first_host, meeting_place, told_by
from notebook_accel.errors import ConfigError

SRUN = {
    "SLURM_JOB_ID": "4711023",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
}


def test_without_any_variable_it_is_a_world_of_one() -> None:
    assert told_by({}) is None
    assert Placement.from_env({}) == Placement()


def test_torchruns_variables_are_read() -> None:
    env = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert told_by(env) == Told("torchrun", 3, 4, 1, 2)
    assert Placement.from_env(env, "cuda").device == "cuda:1"


def test_srun_tells_rank_and_size_of_its_step() -> None:
    assert told_by(SRUN) == Told("Slurm", 5, 8, 1, 4)


def test_a_batch_script_is_no_rank_of_the_tasks_it_asked_for() -> None:
    batch = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    assert told_by(batch) is None


def test_older_sruns_name_the_number_of_tasks_otherwise() -> None:
    env = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_PROCID": "1"}
    assert told_by(env) == Told("Slurm", 1, 2, 1, 2)


@pytest.mark.parametrize(
    ("by", "env"),
    [
        (
            "Open MPI",
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ),
        ("MVAPICH", ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK")),
        ("MPI", ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID")),
    ],
)
def test_each_kind_of_mpirun_is_read(by: str, env: tuple[str, str, str]) -> None:
    told = told_by(dict(zip(env, ("2", "4", "0"), strict=True)))
    assert told is not None
    assert (told.by, told.rank, told.size, told.local_rank) == (by, 2, 4, 0)


def test_torchrun_inside_a_slurm_step_counts_before_slurm() -> None:
    told = told_by({**SRUN, "RANK": "0", "WORLD_SIZE": "2"})
    assert told is not None and (told.by, told.size) == ("torchrun", 2)


def test_mpirun_inside_a_slurm_step_counts_before_slurm() -> None:
    told = told_by({**SRUN, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "16"})
    assert told is not None and (told.by, told.rank, told.size) == ("Open MPI", 1, 16)


def test_pods_are_machines_of_their_own() -> None:
    env = {"RANK": "1", "WORLD_SIZE": "2", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert told_by(env) == Told("torchrun", 1, 2, 0, 1)


def test_a_rank_that_is_no_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="variable RANK is 'one'"):
        told_by({"RANK": "one", "WORLD_SIZE": "2"})


def test_a_rank_beyond_the_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="RANK=2 and WORLD_SIZE=2"):
        told_by({"RANK": "2", "WORLD_SIZE": "2"})


def test_ranks_meet_where_the_environment_says() -> None:
    assert meeting_place({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1"}) == "env://"


def test_ranks_of_several_slurm_nodes_meet_on_the_first() -> None:
    assert meeting_place(SRUN) == "tcp://gpu07:16023"
    assert meeting_place({**SRUN, "MASTER_ADDR": "10.0.0.1"}) == "tcp://10.0.0.1:16023"
    assert meeting_place({**SRUN, "SLURM_STEP_NUM_NODES": "1"}) == "tcp://127.0.0.1:16023"


def test_ranks_of_one_machine_meet_on_loopback() -> None:
    env = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    assert meeting_place(env) == "tcp://127.0.0.1:29500"


def test_several_machines_without_an_address_are_asked_for_one() -> None:
    env = {
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    }
    with pytest.raises(ConfigError, match="set MASTER_ADDR"):
        meeting_place(env)


@pytest.mark.parametrize(
    ("hosts", "first"),
    [("node[07-09,12],login1", "node07"), ("a1,a2", "a1"), ("solo", "solo"), ("", None)],
)
def test_the_first_host_of_a_slurm_list_is_found(hosts: str, first: str | None) -> None:
    assert first_host(hosts) == first

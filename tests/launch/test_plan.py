"""Who runs where, decided from plain data."""

from __future__ import annotations

import pytest

from notebook_accel.config.placement import Placement
from notebook_accel.errors import ConfigError
from notebook_accel.launch.devices import Device
from notebook_accel.launch.plan import plan

T4S = [Device("cuda", i, "Tesla T4", f"GPU-{i}", 16 << 30, 15 << 30) for i in range(2)]
FOUR = [Device("cuda", i, f"GPU model {i}", f"GPU-{i}") for i in range(4)]
MPS = [Device("mps", 0, "Apple GPU")]
TPU = [Device("tpu", 0, "TPU (PJRT_DEVICE=TPU)")]


def refusal(*args: object, **kwargs: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        plan(*args, **kwargs)
    return caught.value


def test_one_rank_per_gpu_when_no_count_is_given() -> None:
    made = plan(None, None, T4S, 4)
    assert made.placements == (
        Placement(0, 2, 0, 2, "cuda:0", "nccl"),
        Placement(1, 2, 1, 2, "cuda:1", "nccl"),
    )
    assert made.device_words == "2 x Tesla T4"
    assert made.num_threads == 2
    assert made.env == {}
    assert made.notes == ()


def test_fewer_ranks_than_gpus_take_the_first_ones() -> None:
    made = plan(1, "auto", FOUR, 4)
    assert made.placements == (Placement(0, 1, 0, 1, "cuda:0", None),)
    assert made.device_words == "GPU model 0"


def test_without_accelerator_a_count_means_cpu_ranks_over_gloo() -> None:
    made = plan(2, None, [], 2)
    assert [p.device for p in made.placements] == ["cpu", "cpu"]
    assert [p.comm for p in made.placements] == ["gloo", "gloo"]
    assert made.device_words == "2 CPU processes"
    assert made.notes == ()


def test_without_accelerator_and_count_one_process_runs_and_a_note_says_so() -> None:
    made = plan(None, None, [], 2)
    assert made.placements == (Placement(0, 1, 0, 1, "cpu", None),)
    assert made.device_words == "1 CPU process"
    assert made.notes == ("no accelerator here: 1 process on the CPU",)
    assert plan(None, "cpu", T4S, 2).notes == ()


@pytest.mark.parametrize("device", [None, "auto", "cuda", "gpu"])
def test_more_ranks_than_gpus_stops_with_both_ways_out(device: str | None) -> None:
    error = refusal(2, device, T4S[:1], 4)
    assert error.what == "num_processes=2, but 1 CUDA device to use"
    assert "num_processes=1" in error.fix
    assert 'device="cpu"' in error.fix
    assert 'device="auto-or-cpu"' in error.fix


@pytest.mark.parametrize(
    ("devices", "have"), [([], "no accelerator here"), (T4S[:1], "1 CUDA device to use")]
)
def test_auto_or_cpu_falls_back_with_one_note(devices: list[Device], have: str) -> None:
    made = plan(2, "auto-or-cpu", devices, 4)
    assert [p.device for p in made.placements] == ["cpu", "cpu"]
    assert made.notes == (f"{have}: 2 ranks run on the CPU",)


def test_auto_or_cpu_takes_the_gpus_where_they_are() -> None:
    made = plan(2, "auto-or-cpu", T4S, 4)
    assert [p.device for p in made.placements] == ["cuda:0", "cuda:1"]
    assert made.notes == ()


def test_cpu_ranks_beside_gpus_hide_nothing() -> None:
    made = plan(3, "cpu", T4S, 8)
    assert [p.device for p in made.placements] == ["cpu"] * 3
    assert made.env == {}
    assert made.num_threads == 2


def test_a_list_picks_and_orders() -> None:
    made = plan(None, [2, 0], FOUR, 4)
    assert made.env == {"CUDA_VISIBLE_DEVICES": "GPU-2,GPU-0"}
    assert [p.device for p in made.placements] == ["cuda:0", "cuda:1"]
    assert made.device_words == "GPU model 2 + GPU model 0"


def test_one_number_is_one_gpu() -> None:
    made = plan(None, 3, FOUR, 4)
    assert made.env == {"CUDA_VISIBLE_DEVICES": "GPU-3"}
    assert [p.device for p in made.placements] == ["cuda:0"]


def test_gpus_without_uuid_are_picked_by_number() -> None:
    nameless = [Device("cuda", i, "some GPU") for i in range(3)]
    assert plan(None, [2, 1], nameless, 4).env == {"CUDA_VISIBLE_DEVICES": "2,1"}


def test_a_wrong_or_repeated_number_names_what_is_there() -> None:
    error = refusal(None, [0, 7], T4S, 4)
    assert error.what == "device=[0, 7]: there is no GPU 7"
    assert "0 (Tesla T4), 1 (Tesla T4)" in error.why
    assert error.fix == "pick among [0, 1]"
    assert "GPU 1 is asked for more than once" in refusal(None, [1, 1], T4S, 4).what
    assert "there is no GPU -1" in refusal(None, -1, T4S, 4).what
    assert refusal(None, 0, [], 4).fix == 'pass device="cpu"'


def test_more_ranks_than_picked_gpus_names_the_ones_left() -> None:
    error = refusal(3, [2, 0], FOUR, 4)
    assert "num_processes=2" in error.fix
    assert "pick more of the 4" in error.fix


@pytest.mark.parametrize(("device", "word"), [("cuda", "CUDA"), ("gpu", "CUDA"), ("mps", "MPS")])
def test_a_kind_that_is_not_here_is_refused(device: str, word: str) -> None:
    error = refusal(1, device, [], 4)
    assert error.what == f"device={device!r}, but there is no {word} device here"
    assert 'device="cpu"' in error.fix


def test_a_mac_runs_one_process_on_its_gpu_and_no_more() -> None:
    assert plan(None, None, MPS, 8).placements == (Placement(0, 1, 0, 1, "mps", None),)
    assert refusal(2, None, MPS, 8).what == "num_processes=2, but 1 MPS device to use"
    assert plan(2, "auto-or-cpu", MPS, 8).placements[1].device == "cpu"


@pytest.mark.parametrize("device", [None, "auto", "auto-or-cpu"])
def test_a_tpu_host_never_trains_silently_on_its_cpu(device: str | None) -> None:
    error = refusal(None, device, TPU, 8)
    assert error.what == "this is a TPU host: TPU (PJRT_DEVICE=TPU)"
    assert "XLA engine" in error.why
    assert plan(2, "cpu", TPU, 8).device_words == "2 CPU processes"


def test_ranks_of_several_machines_are_numbered_through() -> None:
    made = plan(2, "cpu", [], 4, node_rank=1, num_nodes=3)
    assert [(p.rank, p.size) for p in made.placements] == [(2, 6), (3, 6)]
    assert [(p.local_rank, p.local_size) for p in made.placements] == [(0, 2), (1, 2)]
    alone = plan(1, "cpu", [], 4, node_rank=1, num_nodes=2)
    assert alone.placements == (Placement(1, 2, 0, 1, "cpu", "gloo"),)


def test_a_machine_number_out_of_range_is_refused() -> None:
    assert refusal(1, "cpu", [], 4, node_rank=2, num_nodes=2).what == "node_rank=2, but num_nodes=2"
    assert "from 0 to 1" in refusal(1, "cpu", [], 4, node_rank=2, num_nodes=2).fix
    assert "node_rank=0" in refusal(1, "cpu", [], 4, node_rank=-1, num_nodes=2).fix


@pytest.mark.parametrize(("cores", "ranks", "threads"), [(2, 8, 1), (8, 2, 4), (7, 2, 3)])
def test_cores_are_shared_between_the_local_ranks(cores: int, ranks: int, threads: int) -> None:
    assert plan(ranks, "cpu", [], cores).num_threads == threads


def test_more_cpu_ranks_than_cores_are_told_to_take_turns() -> None:
    assert plan(8, "cpu", [], 2).notes == ("8 ranks share 2 cores: they take turns",)
    assert plan(2, "cpu", [], 2).notes == ()

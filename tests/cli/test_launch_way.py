"""The decision behind a launch, on machines made of plain data."""

from __future__ import annotations

import argparse
import signal
from typing import Any

import pytest

from notebook_accel.config.resolve import resolve
from notebook_accel.config.sources import Source
from notebook_accel.errors import ConfigError
from notebook_accel.launch.devices import Device
from notebook_accel.launch.scripts import elastic
from notebook_accel.launch.scripts import way as ways
from notebook_accel.launch.scripts.ending import Fate, lost_its_peers, plain, tell
from notebook_accel.launch.scripts.program import Program
from notebook_accel.launch.scripts.rendezvous import Torchrun
from notebook_accel.launch.scripts.voices import _start_of_last_words
from notebook_accel.launch.scripts.way import Here, Way, choose

SCRIPT = Program("script", "train.py", ("--lr", "1"))
GPUS = [Device("cuda", index, "H200", f"GPU-{index}") for index in range(4)]


def chosen(
    devices: list[Device] | None = None,
    env: dict[str, str] | None = None,
    torchrun: Torchrun | None = None,
    busy: tuple[int, ...] = (),
    address: str = "",
    **settings: Any,
) -> Way:
    here = Here(env or {}, devices or [], 8, address, busy_ports=busy)
    as_options = {
        name: (value, Source("option", "num_processes").like(name))
        for name, value in settings.items()
        if value is not None
    }
    config = resolve({}, env or {}, options=as_options)
    return choose(SCRIPT, config, torchrun or Torchrun(), here)


def option(way: Way, name: str) -> str:
    return way.words[way.words.index(name) + 1]


# ── on what ───────────────────────────────────────────────────────────────────────────────────


def test_every_gpu_is_taken_unless_somebody_says_otherwise() -> None:
    way = chosen(GPUS)
    assert (way.who, way.num_ranks) == (ways.SIDE_BY_SIDE, 4)
    assert way.headline == "4 x H200, 2 threads each"
    assert "ACCELERATE_USE_CPU" not in way.env and "CUDA_VISIBLE_DEVICES" not in way.env


def test_one_process_without_gpus_is_the_script_itself() -> None:
    way = chosen()
    assert (way.who, way.headline) == (ways.ITSELF, "1 CPU process, 8 threads")
    assert way.words[1:] == ("train.py", "--lr", "1")


def test_gpu_numbers_pick_and_order() -> None:
    way = chosen(GPUS, device=[1, 0])
    assert way.num_ranks == 2
    assert way.env["CUDA_VISIBLE_DEVICES"] == "1,0"


def test_gpu_numbers_count_what_is_visible_and_keep_its_names() -> None:
    way = chosen(GPUS[:2], env={"CUDA_VISIBLE_DEVICES": "7,GPU-5"}, device=[1, 0])
    assert way.env["CUDA_VISIBLE_DEVICES"] == "GPU-5,7"


def test_fewer_ranks_than_gpus_leave_some_alone() -> None:
    assert chosen(GPUS, num_processes=3).num_ranks == 3


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_processes": 5}, "5 processes on this machine, but 4 GPUs"),
        ({"num_processes": 3, "device": [0, 1]}, "but 2 GPUs of the 4 here"),
        ({"device": [0, 9]}, "there is no GPU 9"),
        ({"device": [1, 1]}, "GPU 1 is named twice"),
    ],
)
def test_gpus_that_are_not_there_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        chosen(GPUS, **settings)


def test_auto_or_cpu_falls_back_where_gpus_are_too_few() -> None:
    way = chosen(GPUS[:1], device="auto-or-cpu", num_processes=2)
    assert way.env["ACCELERATE_USE_CPU"] == "true"
    assert way.notes == ("1 GPU for 2 ranks: they run on the CPU",)


def test_mps_takes_one_process() -> None:
    mac = [Device("mps", 0, "Apple GPU")]
    assert chosen(mac).headline.startswith("Apple GPU")
    assert chosen(mac, num_processes=2).headline.startswith("2 CPU processes")
    with pytest.raises(ConfigError, match="--device mps with 2 processes"):
        chosen(mac, device="mps", num_processes=2)
    with pytest.raises(ConfigError, match="MPS exists on Macs"):
        chosen(GPUS, device="mps")


def test_more_ranks_than_cores_are_told_to_take_turns() -> None:
    assert "9 ranks share 8 cores: they take turns" in chosen(num_processes=9).notes


# ── who starts them ───────────────────────────────────────────────────────────────────────────


def test_restarts_machines_and_log_files_are_the_agents() -> None:
    for settings in ({"max_restarts": 1}, {"tee": "3"}, {"log_dir": "x"}):
        way = chosen(num_processes=2, **settings)
        assert way.who == ways.AGENT
        assert "--standalone" in way.words and option(way, "--nproc-per-node") == "2"
    assert way.words[-4:] == ("-u", "train.py", "--lr", "1")


def test_a_machine_of_several_gets_its_share_and_the_fixed_port() -> None:
    way = chosen(GPUS, num_processes=8, num_nodes=2, node_rank=1, master_addr="10.0.0.1")
    assert option(way, "--nproc-per-node") == "4"
    assert option(way, "--node-rank") == "1"
    assert (option(way, "--master-addr"), option(way, "--master-port")) == ("10.0.0.1", "29500")
    assert way.headline == (
        "4 x H200 on machine 1 of 2, which meet at 10.0.0.1:29500, 2 threads each"
    )
    assert way.env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_processes": 3}, "write --num_processes 4"),
        ({"num_processes": 4, "master_addr": None}, "write --main_process_ip"),
        ({"num_processes": 4, "use_port": 0}, "--main_process_port 0 on 2 machines"),
    ],
)
def test_machines_that_cannot_meet_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        chosen(**{"num_nodes": 2, "master_addr": "10.0.0.1", **settings})


def test_a_busy_port_is_an_error_on_the_first_machine_only() -> None:
    machines = {"num_nodes": 2, "num_processes": 2, "master_addr": "10.0.0.1"}
    with pytest.raises(ConfigError, match="port 29500 of this machine"):
        chosen(busy=(29500,), node_rank=0, **machines)
    assert chosen(busy=(29500,), node_rank=1, **machines).who == ways.AGENT
    late = chosen(busy=(29500,), rdzv_backend="c10d", node_rank=0, **machines)
    assert late.who == ways.AGENT  # the other agent of this machine listens there


def test_a_machine_that_may_not_be_the_first_is_told_so() -> None:
    machines = {"num_nodes": 2, "num_processes": 2, "master_addr": "10.0.0.1"}
    assert "this machine is 10.0.0.2" in chosen(address="10.0.0.2", **machines).notes[0]
    assert chosen(address="10.0.0.1", **machines).notes == ()
    assert chosen(address="10.0.0.2", node_rank=0, **machines).notes == ()
    by_six = {**machines, "master_addr": "fd00::1"}
    assert "this machine is fd00::2" in chosen(address="fd00::2", **by_six).notes[0]
    by_name = {**machines, "master_addr": "localhost"}
    assert chosen(address="127.0.0.1", **by_name).notes == ()


def test_a_busy_port_on_one_machine_is_chosen_anew() -> None:
    way = chosen(num_processes=2, use_port=4000, busy=(4000,))
    assert way.port is None and way.notes == ("port 4000 is in use: a free one was chosen",)
    assert chosen(num_processes=2, use_port=4000).port == 4000
    again = chosen(num_processes=2, use_port=4000, busy=(4000,), max_restarts=1)
    assert "--standalone" in again.words and "port 4000 is in use" in again.notes[0]
    kept = chosen(num_processes=2, use_port=4000, max_restarts=1)
    assert option(kept, "--master-port") == "4000"


def test_machines_that_come_and_go_meet_by_c10d() -> None:
    elastic = Torchrun(least=1, per_machine="2")
    way = chosen(torchrun=elastic, num_nodes=4, rdzv_endpoint="10.0.0.1:1234", address="10.0.0.1")
    assert (option(way, "--nnodes"), option(way, "--rdzv-backend")) == ("1:4", "c10d")
    assert option(way, "--rdzv-endpoint") == "10.0.0.1:1234"
    assert option(way, "--rdzv-conf") == "is_host=1"
    assert way.headline.startswith(
        "2 CPU processes on 1 to 4 machines, which meet at 10.0.0.1:1234"
    )
    other = chosen(torchrun=elastic, num_nodes=4, rdzv_endpoint="10.0.0.1:1234", address="10.0.0.2")
    assert "--rdzv-conf" not in other.words


def test_a_rendezvous_of_one_machine_needs_no_address() -> None:
    way = chosen(num_processes=2, rdzv_backend="c10d")
    assert way.who == ways.AGENT and "--standalone" in way.words


def test_an_endpoint_without_a_port_has_torchs_own() -> None:
    way = chosen(num_nodes=2, rdzv_backend="c10d", rdzv_endpoint="host1")
    assert option(way, "--rdzv-endpoint") == "host1:29400"


def test_torchruns_count_and_ours_do_not_go_together() -> None:
    with pytest.raises(ConfigError, match="both given"):
        chosen(torchrun=Torchrun(per_machine="2"), num_processes=2)
    with pytest.raises(ConfigError, match="--nproc_per_node many is no count"):
        chosen(torchrun=Torchrun(per_machine="many"))
    assert chosen(GPUS, torchrun=Torchrun(per_machine="gpu")).num_ranks == 4
    assert chosen(torchrun=Torchrun(per_machine="cpu")).num_ranks == 8


def test_mpirun_needs_an_address_for_several_machines() -> None:
    with pytest.raises(ConfigError, match="write --main_process_ip"):
        chosen(mpirun_hostfile="hosts", num_nodes=2, num_processes=2)


# ── how it ended ──────────────────────────────────────────────────────────────────────────────


def test_the_first_failure_of_its_own_is_blamed() -> None:
    lost = b"Traceback...\ntorch.distributed.DistBackendError: NCCL error: remote process exited\n"
    own = b"Traceback...\nValueError: no\n"
    told, code = tell([Fate(1, 1, lost), Fate(2, 3, own), Fate(0, -15, b"", by_us=True)], 3)
    assert (told.words, told.summary, code) == (own, "rank 2 of 3 failed, exit code 3", 3)


def test_what_torchs_agent_ended_itself_is_not_blamed() -> None:
    assert elastic.first({0: -15, 1: 7, 2: 1}) == (1, 7)
    assert elastic.first({3: -9}) == (3, -9)


def test_failures_of_several_kinds_are_each_told() -> None:
    told, _ = tell([Fate(1, 1, b"E: a\n"), Fate(0, 1, b"E: b\n"), Fate(2, 1, b"E: a\n")], 3)
    assert told.words == b"E: a\n\nrank 0:\nE: b\n"
    assert told.summary == "ranks 1 and 2 of 3 failed in the same way, exit code 1"


def test_failures_that_differ_in_an_address_are_one() -> None:
    said = b"E: <Net at 0x7f3a10>\n"
    told, _ = tell([Fate(0, 1, said), Fate(1, 1, b"E: <Net at 0x7fbb2c>\n")], 2)
    assert told.words == said
    assert told.summary == "ranks 0 and 1 of 2 failed in the same way, exit code 1"


def test_what_looked_like_last_words_of_a_good_end_is_shown_once() -> None:
    told, code = tell([Fate(0, 0, b"warned of 0\n"), Fate(1, 0, b"warned of 1\n")], 2)
    assert (told.words, told.summary, code) == (b"warned of 0\n", "", 0)


def test_an_interrupted_run_shows_one_rank_and_the_signal() -> None:
    fates = [Fate(1, 1, b"KeyboardInterrupt\n", True), Fate(0, -2, b"at 0\n", True)]
    told, code = tell(fates, 2, signal.SIGINT)
    assert (told.words, told.summary, code) == (b"at 0\n", "ended by SIGINT", 130)


def test_a_lost_connection_is_known_by_its_last_line() -> None:
    assert lost_its_peers(b"x\nRuntimeError: [gloo] Connection closed by peer [::1]:2\n")
    assert lost_its_peers(b"torch.distributed.DistNetworkError: the client socket has failed\n")
    assert not lost_its_peers(b"RuntimeError: shapes differ\n")
    assert not lost_its_peers(b"")


def test_torchs_rank_marks_are_taken_out_of_last_words() -> None:
    assert plain(b"[rank0]: Traceback\n[rank0]:   File\n[rank0]:\n") == b"Traceback\n  File\n\n"


@pytest.mark.parametrize(
    ("text", "before"),
    [
        (b"a\nTraceback (most recent call last):\n", b"a\n"),
        (b"45%|##Traceback (most recent call last):\n", b"45%|##"),
        (b"x\n[rank3]: Traceback (most recent call last):\n", b"x\n"),
        (b"usage: x\n", b""),
        (b"no usage: x\n", b"no usage: x\n"),
    ],
)
def test_the_start_of_last_words_is_found(text: bytes, before: bytes) -> None:
    assert text[: _start_of_last_words(text)] == before


def test_a_first_machine_that_cannot_be_found_is_told_before_the_wait() -> None:
    asked: dict[str, Any] = {"num_nodes": 2, "num_processes": 2, "master_addr": "no.such.host"}
    notes = chosen(**asked).notes
    assert "no.such.host cannot be found from this machine" in notes[-1]
    assert chosen(**asked, address="10.0.0.2").notes == ()


def test_options_that_the_installed_torch_does_not_have_are_found() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nnodes")
    words = ["--nnodes", "2", "--virtual-local-rank"]
    assert elastic.unknown_words(words, parser) == ["--virtual-local-rank"]
    assert elastic.unknown_words(words[:2], parser) == []

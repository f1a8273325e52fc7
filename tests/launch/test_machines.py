"""Several machines run the same cell: launchers of this machine stand for them."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
from torch import nn

from notebook_accel import Accelerator, ConfigError, LaunchError, RunInterrupted, notebook_launcher
from notebook_accel.launch import addresses, elastic, machines


def free_port() -> int:
    with socket.socket() as finder:
        finder.bind(("127.0.0.1", 0))
        return int(finder.getsockname()[1])


def both(main: Any, num_processes: int = 1, **how: Any) -> list[Any]:
    """Run ``main`` on two machines; give what each launch gave, or its exception."""
    how = {"num_nodes": 2, "use_port": free_port(), "device": "cpu", "block": False, **how}
    runs = [notebook_launcher(main, (), num_processes, node_rank=node, **how) for node in (1, 0)]
    results: list[Any] = []
    for run in reversed(runs):
        try:
            results.append(run.wait(90))
        except BaseException as error:
            results.append(error)
    return results


def meet() -> list[Any]:
    accelerator = Accelerator()
    seen: list[Any] = [None] * accelerator.num_processes
    here = accelerator.process_index, accelerator.local_process_index, os.environ["MASTER_PORT"]
    dist.all_gather_object(seen, here)
    return seen


def test_machines_meet_by_torch_elastic_and_are_numbered_as_they_say() -> None:
    conf = {"join_timeout": 60}
    first, second = both(meet, 2, rdzv_conf=conf)
    assert [(rank, local) for rank, local, _ in first[0]] == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert list(first) == list(second)
    assert len({port for _, _, port in first[0]}) == 1
    assert conf == {"join_timeout": 60}  # case E7: Accelerate writes a rank into it


def test_machines_that_meet_by_c10d_are_numbered_by_torch() -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    how = {"rdzv_backend": "c10d", "rdzv_endpoint": endpoint, "rdzv_id": "a run"}
    one, other = both(meet, 1, use_port=None, **how)
    assert sorted(rank for rank, _, _ in one[0]) == [0, 1]
    assert list(one) == list(other)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_all_machines_start_again_after_a_failure_on_one(
    backend: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def main() -> tuple[int, str, float]:
        accelerator = Accelerator()
        torch.manual_seed(0)
        model = accelerator.prepare(nn.Linear(1, 1))
        restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
        if accelerator.process_index == 1 and restart == "0":
            raise ValueError("the first time")
        loss = model(torch.ones(1, 1)).sum()
        accelerator.backward(loss)
        return accelerator.process_index, restart, loss.item()

    first, second = both(main, rdzv_backend=backend, max_restarts=1, monitor_interval=0.05)
    values = sorted([*first, *second])
    assert [value[:2] for value in values] == [(0, "1"), (1, "1")]
    assert values[0][2] == values[1][2]
    said = capfd.readouterr().out
    assert said.count("note: starting all ranks on all machines again (restart 1)") == 2
    assert "note: ValueError: the first time" in said


@pytest.mark.slow
def test_a_failure_without_restarts_ends_both_machines() -> None:
    def main() -> None:
        accelerator = Accelerator()
        if accelerator.process_index == 1:
            raise ValueError("for good")
        accelerator.wait_for_everyone()

    first, second = both(main)
    assert isinstance(second, ValueError)
    assert isinstance(first, Exception) and not isinstance(first, ValueError)


@pytest.mark.slow
def test_a_machine_that_returns_does_not_wait_long_for_one_that_failed() -> None:
    def main() -> str:
        accelerator = Accelerator()
        if accelerator.process_index == 1:
            raise ValueError("for good")
        return "done"

    first, second = both(main)
    assert list(first) == ["done"]
    assert isinstance(second, ValueError)


def test_a_machine_that_waits_for_others_can_be_stopped() -> None:
    run = notebook_launcher(
        meet, (), 1, num_nodes=2, use_port=free_port(), device="cpu", block=False
    )
    run.stop()
    with pytest.raises(RunInterrupted, match="stopped while the machines were meeting"):
        run.wait(30)


@pytest.mark.slow
def test_machines_that_do_not_come_are_not_waited_for_longer_than_asked() -> None:
    how = {"num_nodes": 2, "use_port": free_port(), "device": "cpu"}
    with pytest.raises(LaunchError, match="not all machines came to the meeting at") as caught:
        notebook_launcher(meet, (), 1, rdzv_conf={"join_timeout": 2}, **how)
    assert caught.value.why.endswith("torch: RendezvousTimeoutError")
    assert "join_timeout" in caught.value.fix


def test_a_first_machine_that_cannot_be_found_is_told_at_once_and_named_at_the_end(
    capfd: pytest.CaptureFixture[str],
) -> None:
    host = "no.such.host.invalid"
    how = {"num_nodes": 2, "use_port": free_port(), "device": "cpu", "master_addr": host}
    with pytest.raises(LaunchError, match=f"came to the meeting at {host}:") as caught:
        notebook_launcher(meet, (), 1, rdzv_conf={"join_timeout": 1}, **how)
    assert "with the same num_nodes and address" in caught.value.why
    assert f"note: {host} cannot be found from this machine" in capfd.readouterr().out
    assert addresses.unknown("localhost") == "" and addresses.unknown("x" * 70)


def test_a_port_that_is_taken_is_refused_at_once() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 cannot be used"):
            notebook_launcher(meet, (), 1, num_nodes=2, use_port=port, device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("meets", [True, False])
def test_a_run_whose_agent_is_killed_ends_and_says_so(meets: bool) -> None:
    def main() -> None:
        if meets:
            Accelerator()
        else:  # with what a rank sees that was still meeting the others through the agent's store
            store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
            store.get("nobody sets it")
        time.sleep(600)

    how = {"num_nodes": 2, "use_port": free_port(), "device": "cpu", "block": False}
    runs = [notebook_launcher(main, (), 1, node_rank=node, **how) for node in (1, 0)]
    deadline = time.monotonic() + 60
    while not all(run._attempt is not None and run._attempt.beats() for run in runs):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    agents = [one for one in psutil.Process().children() if "torch_agent" in str(one.cmdline())]
    assert len(agents) == 2
    for agent in agents:
        agent.kill()
    for run in runs:
        with pytest.raises(LaunchError, match="the machines lost each other") as caught:
            run.wait(40)
        assert "its agent ended" in caught.value.why


def test_a_name_and_a_routers_address_are_listened_at_everywhere() -> None:
    """A machine's own name often is 127.0.1.1 to itself, where the others would not get through."""
    meeting = elastic.Meeting("127.0.0.1", 0, "run", 2, 0, 1)
    for host, at in (
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "127.0.0.1"),
        ("192.0.2.1", "0.0.0.0"),
        (socket.gethostname(), "0.0.0.0"),
    ):
        with machines.listen(host, 0) as listener:
            assert listener.getsockname()[0] == at
            seen = machines.seen_from_here(replace(meeting, host=host), listener)
            assert seen.host == (host if at == "127.0.0.1" else "127.0.0.1")
    assert set(machines.through(meeting).values()) <= {"lo", "lo0"}


@pytest.mark.slow
def test_an_interrupted_run_gives_its_partial_result_where_that_was_asked() -> None:
    def main() -> None:
        accelerator = Accelerator()
        model = accelerator.prepare(nn.Linear(1, 1))
        optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
        while True:
            accelerator.backward(model(torch.ones(1, 1)).sum())
            optimizer.step()

    how = {"num_nodes": 2, "use_port": free_port(), "device": "cpu", "block": False}
    runs = [
        notebook_launcher(main, (), 1, node_rank=node, on_interrupt="return", **how)
        for node in (1, 0)
    ]
    deadline = time.monotonic() + 60
    while not all(len(run.history.get("loss", [])) > 3 for run in runs):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    runs[1].stop()
    results = [run.wait(30) for run in runs]
    assert [result.stopped for result in results] == [True, True]
    assert len({len(result.history["loss"]) for result in results}) == 1


def test_an_agent_that_dies_is_told_with_its_last_words() -> None:
    meeting = elastic.Meeting("127.0.0.1", free_port(), "run", 2, 1, 1)
    agent = elastic.Agent(meeting)
    try:
        os.kill(agent.pid, 9)
        word = elastic.wait(agent, lambda: False)
    finally:
        agent.close()
    assert isinstance(word, elastic.End) and word.failed
    error = elastic.apart(word, agent.place)
    assert error.what == "the machines lost each other"
    assert "its agent ended; its last words: (none)" in error.why
    assert "one of them has ended or cannot be reached" in error.fix


def test_the_way_to_another_machine_is_found() -> None:
    assert addresses.towards("127.0.0.1", 1) == "127.0.0.1"
    assert addresses.towards("no such host.invalid", 1) == ""
    assert addresses.interface_of("127.0.0.1") in ("lo", "lo0")
    assert addresses.interface_of("192.0.2.1") == ""
    assert addresses.talking_through("192.0.2.1") == {}
    numbers = [addresses.is_number(host) for host in ("localhost", "10.0.0.1", "::1", "node-a", "")]
    assert numbers == [True, True, True, False, False]
    loopback = [addresses.is_loopback(host) for host in ("localhost", "127.0.0.9", "::1")]
    assert loopback == [True] * 3
    assert not any(map(addresses.is_loopback, ("10.0.0.1", "example.org", "")))

"""Other machines join a notebook's run: processes of this machine stand for them."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from notebook_accel import (
    Accelerator,
    ConfigError,
    LaunchError,
    RunInterrupted,
    RunTimeout,
    WorkerDied,
    notebook_launcher,
)
from notebook_accel.launch import frames, gathering, joining, likeness
from notebook_accel.launch.run import Interrupts
from tests.support.kernels import wait_gone
from tests.support.machines import Joiner, Script, joinable

pytestmark = pytest.mark.timeout(240)


def train(how: str = "", num_steps: int = 4) -> Any:
    """Give a function to launch; made here, so that it travels by value."""

    def main() -> tuple[int, int, int, float]:
        accelerator = Accelerator()
        rank = accelerator.process_index
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
        loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
        model, optimizer, loader = accelerator.prepare(
            model, torch.optim.SGD(model.parameters(), lr=0.1), loader
        )
        step = 0
        while step < num_steps:
            for x, y in loader:
                optimizer.zero_grad()
                loss = ((model(x) - y) ** 2).mean()
                accelerator.backward(loss)
                optimizer.step()
                step += 1
                if how == "forever":
                    print(f"rank {rank} goes on")
                    time.sleep(0.02)
            if rank == 3 and how == "fail":
                raise ValueError("on the other machine")
            if rank == 3 and how == "fail once" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                raise ValueError("the first time")
            if rank == 3 and how == "die":
                os.kill(os.getpid(), signal.SIGKILL)
        print(f"rank {rank} is done")
        return rank, accelerator.num_processes, accelerator.local_process_index, loss.item()

    return main


def test_machines_that_join_make_one_run_with_the_notebook() -> None:
    torch.manual_seed(7)
    with joinable(train()) as waiting:
        joiner = waiting.join()
        result = waiting.run.wait(90)
        code, out = joiner.end()
    assert [value[:3] for value in result] == [(0, 4, 0), (1, 4, 1), (2, 4, 0), (3, 4, 1)]
    assert [log.splitlines()[-1] for log in result.logs] == [f"rank {n} is done" for n in range(4)]
    said = waiting.said.getvalue()
    assert "[3] rank 3 is done\n" in said
    assert "machine 1 (" in said and ", 127.0.0.1) has joined: 2 CPU processes" in said
    assert code == 0
    assert "as machine 1 of 2: 2 CPU processes. Its output appears in the notebook." in out
    assert out.endswith("The run is over.\n")
    torch.manual_seed(7)
    alone = notebook_launcher(train(), (), 4, device="cpu")
    assert result.history["loss"] == alone.history["loss"]
    assert [value[3] for value in result] == [value[3] for value in alone]


def test_an_exception_on_another_machine_is_raised_in_the_notebook() -> None:
    with joinable(train("fail")) as waiting:
        joiner = waiting.join()
        with pytest.raises(ValueError, match="on the other machine") as caught:
            waiting.run.wait(90)
        code, out = joiner.end()
    if sys.version_info >= (3, 11):
        assert "raised in rank 3, " in caught.value.__notes__[0]
    assert 'raise ValueError("on the other machine")' in str(caught.value.__cause__)
    assert code == 1
    assert "the run failed; what rank 3 of this machine did: it raised ValueError" in out


def listening_at(pids: set[int]) -> set[str]:
    """Give the addresses at which ``pids``, and what they have started, listen."""
    found = set()
    for pid in pids:
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            for connection in one.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    found.add(connection.laddr.ip)
    return found


@pytest.mark.slow
def test_all_machines_stop_at_the_same_step() -> None:
    with joinable(train("forever", 10**6)) as waiting:
        joiner = waiting.join()
        waiting.match(r"rank 3 goes on")
        listening = listening_at({os.getpid(), joiner.process.pid, *joiner.family()})
        time.sleep(0.5)
        waiting.run.stop()
        with pytest.raises(RunInterrupted, match=r"stopped at step \d+;") as caught:
            waiting.run.wait(60)
        code, out = joiner.end()
    assert listening == {"127.0.0.1"}
    result = caught.value.result
    assert repr(result).startswith("RunResult(2 machines with 2 CPU processes each, ")
    assert len(result.salvaged) == 1 and isinstance(result.salvaged[0], nn.Linear)
    counts = {log.count("goes on") for log in result.logs}
    assert max(counts) - min(counts) <= 1  # the last line of a rank may be under way
    assert len(result.history["loss"]) >= min(counts)
    assert (code, out.splitlines()[-1]) == (0, "The run was stopped.")


@pytest.mark.slow
def test_ctrl_c_at_a_joined_machine_stops_all_of_them() -> None:
    with joinable(train("forever", 10**6)) as waiting:
        joiner = waiting.join()
        waiting.match(r"rank 3 goes on")
        joiner.process.send_signal(signal.SIGINT)
        with pytest.raises(RunInterrupted, match="stopped at step"):
            waiting.run.wait(60)
        code, _ = joiner.end()
        assert "note: the run was stopped on machine 1 (" in waiting.said.getvalue()
    assert code == 0


@pytest.mark.slow
def test_a_lost_machine_ends_the_run_and_is_named() -> None:
    with joinable(train("forever", 10**6)) as waiting:
        joiner = waiting.join()
        waiting.match(r"rank 3 goes on")
        family = joiner.family()
        joiner.process.kill()
        with pytest.raises(WorkerDied, match=r"machine 1 \(.*\) was lost, after step") as caught:
            waiting.run.wait(60)
        joiner.end()
    assert "the joined command or its machine ended" in caught.value.why
    assert caught.value.rank == 2
    closing = [line for line in waiting.said.getvalue().splitlines() if " steps in " in line]
    assert len(closing) == 1 and ": machine 1 (" in closing[0] and ") was lost · " in closing[0]
    assert len(caught.value.result.history["loss"]) > 0
    assert wait_gone(family) == set()


@pytest.mark.slow
def test_a_rank_that_is_killed_on_another_machine_is_named() -> None:
    with joinable(train("die")) as waiting:
        joiner = waiting.join()
        with pytest.raises(WorkerDied, match="rank 3 was killed by SIGKILL, after step"):
            waiting.run.wait(90)
        assert joiner.end()[0] == 1


@pytest.mark.slow
def test_a_failure_on_one_machine_restarts_all() -> None:
    with joinable(train("fail once"), max_restarts=1) as waiting:
        joiner = waiting.join()
        result = waiting.run.wait(120)
        code, out = joiner.end()
    assert [value[0] for value in result] == [0, 1, 2, 3]
    assert len(result.history["loss"]) == 4
    again = "note: starting all ranks on all machines again (restart 1)"
    assert again in waiting.said.getvalue() and again in out
    assert code == 0


@pytest.mark.slow
def test_a_joined_machine_leaves_nothing_behind_when_the_notebook_dies(tmp_path: Path) -> None:
    script = tmp_path / "notebook.py"
    script.write_text(
        "import time\nfrom notebook_accel import Accelerator, notebook_launcher\n"
        "def main():\n    Accelerator()\n    print('at work')\n    time.sleep(600)\n"
        "notebook_launcher(main, (), 1, num_nodes=2, join=True, device='cpu')\n"
    )
    with Script(script) as notebook, notebook.joiner() as joiner:
        notebook.match(r"1\] at work")
        family = joiner.family()
        assert len(family) >= 3  # its rank, its guard, torch's agent
        notebook.process.kill()
        code, out = joiner.end()
    assert code == 1
    assert "the notebook is gone, and the ranks of this machine with it" in out
    assert wait_gone(family) == set()


def test_strangers_are_refused_and_told_of_while_the_notebook_waits_on() -> None:
    with joinable(train()) as waiting:
        with Joiner(waiting.address, frames.new_token()) as stranger_with_token:
            code, out = stranger_with_token.end()
        assert code == 1
        assert "this machine was not let in: the notebook knows no such token" in out
        waiting.match("note: 127.0.0.1 was not let in: its token is wrong")
        host, _, port = waiting.address.partition(":")
        assert host == "127.0.0.1"
        with socket.create_connection((host, int(port)), 5) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(60))
            waiting.match("note: 127.0.0.1 was not let in: it speaks no such protocol")
        waiting.run.stop()
        with pytest.raises(RunInterrupted, match="stopped while it waited for machines"):
            waiting.run.wait(30)
    with pytest.raises(LaunchError, match="no notebook waits at") as caught:
        joining.join(host, int(port), frames.new_token())
    assert "copy the line that the notebook shows now" in caught.value.fix


@pytest.mark.slow
def test_each_token_lets_one_of_several_machines_in() -> None:
    with joinable(train(), num_processes=1, num_nodes=3) as waiting:
        assert len(waiting.tokens) == 2
        used = waiting.tokens[0]
        first = waiting.join()
        waiting.match("machine 1 .* has joined")
        with Joiner(waiting.address, used) as again:
            code, out = again.end()
            assert code == 1
            assert "this machine was not let in: its token was used already" in out
        waiting.match("note: 127.0.0.1 was not let in: its token was used already")
        second = waiting.join()
        result = waiting.run.wait(110)
        assert [first.end()[0], second.end()[0]] == [0, 0]
    assert [value[:3] for value in result] == [(0, 3, 0), (1, 3, 0), (2, 3, 0)]
    assert "machine 2 (" in waiting.said.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_a_run_that_takes_too_long_ends_on_all_machines(start_method: str) -> None:
    how = {"num_processes": 1, "start_method": start_method, "timeout_s": 20.0}
    with joinable(train("forever", 10**6), **how) as waiting:
        joiner = waiting.join()
        with pytest.raises(RunTimeout, match="longer than timeout_s=20") as caught:
            waiting.run.wait(100)
        _, out = joiner.end()
    assert "rank 1 could not be asked, after step" in caught.value.why
    # its rank may see the connection break before the notebook's word is there
    assert "The run was stopped." in out or "the run failed" in out


@pytest.mark.slow
def test_big_arguments_and_results_travel_between_machines() -> None:
    def main(table: torch.Tensor) -> torch.Tensor:
        return table + int(os.environ["RANK"])

    table = torch.arange(10_000_000.0)
    with joinable(main, (table,), num_processes=1) as waiting:
        joiner = waiting.join()
        result = waiting.run.wait(100)
        assert joiner.end()[0] == 0
    assert torch.equal(result[1], table + 1)


def test_what_cannot_travel_is_named_before_anybody_is_waited_for(
    capfd: pytest.CaptureFixture[str],
) -> None:
    lock = threading.Lock()
    with pytest.raises(LaunchError, match="the captured variable lock"):
        notebook_launcher(lambda: lock, (), 1, num_nodes=2, join=True, device="cpu")
    assert "Waiting for" not in capfd.readouterr().out


def channels(one: socket.socket, other: socket.socket) -> tuple[frames.Channel, frames.Channel]:
    up, down = b"u" * 32, b"d" * 32
    return (
        frames.Channel(one, frames.Sealer(down), frames.Opener(up)),
        frames.Channel(other, frames.Sealer(up), frames.Opener(down)),
    )


def test_a_machine_that_cannot_take_part_says_why_on_both_sides() -> None:
    plan = {"num_local": 1, "node_rank": 1, "num_nodes": 2}
    notebook, here = channels(*socket.socketpair())
    with pytest.raises(ConfigError, match=r"would train on cpu, the notebook's trains on cuda"):
        joining._place(here, {"meeting": plan, "device": "cpu", "kind": "cuda"})
    word, why = notebook.receive(5)[0]
    assert (word, why[-43:]) == ("cannot", "train on cpu, the notebook's trains on cuda")
    notebook.close()
    here.close()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (("cannot", "no GPU here"), "127.0.0.1 was not let in: it cannot take part: no GPU here"),
        (None, "127.0.0.1 was not let in: it did not answer within 0 s"),
    ],
)
def test_the_notebook_waits_on_when_a_machine_cannot_take_part(
    answer: Any, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gathering, "READY_S", 0.4 if answer is None else 20)
    invitation = gathering.Invitation(2, 1.5, lambda node: {"node": node}, memoryview(b"payload"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gate = gathering.Gate(listener, invitation)

        def come() -> None:
            with socket.create_connection(listener.getsockname(), 5) as sock:
                channel, _ = frames.enter(sock, gate.tokens[0].text, likeness.facts())
                if answer is not None:
                    channel.send(answer)
                time.sleep(1)

        thread = threading.Thread(target=come)
        thread.start()
        with pytest.raises(LaunchError, match="0 of 1 other machine joined"):
            gate.wait(lambda: False)
        thread.join(10)
    assert f"note: {words}\n" in capsys.readouterr().out
    assert not gate.tokens[0].used


def test_a_plan_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "QUIET_S", 0.1)
    notebook, here = channels(*socket.socketpair())
    interrupts = Interrupts()
    with pytest.raises(LaunchError, match="not let in: no plan came"):
        joining._receive_plan(here, interrupts)
    interrupts.count = 1
    with pytest.raises(LaunchError, match="not let in: it was stopped"):
        joining._receive_plan(here, interrupts)
    notebook.close()
    with pytest.raises(LaunchError, match="not let in: the connection was closed"):
        joining._receive_plan(here, Interrupts())
    here.close()


def test_a_notebook_does_not_wait_for_ever() -> None:
    with (
        joinable(train(), rdzv_conf={"join_timeout": 1}) as waiting,
        pytest.raises(LaunchError, match="0 of 1 other machine joined within 1 s") as caught,
    ):
        waiting.run.wait(30)
    assert 'rdzv_conf={"join_timeout": seconds} waits longer' in caught.value.fix


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"num_nodes": 1}, "join=True with num_nodes=1"),
        ({"num_nodes": 2, "node_rank": 1}, "join=True with node_rank=1"),
        ({"num_nodes": 2, "rdzv_backend": "c10d"}, "join=True with rdzv_backend='c10d'"),
        ({"num_nodes": 2, "master_addr": "10.0.0.5"}, "10.0.0.5 is not a loopback address"),
    ],
)
def test_a_join_that_cannot_be_meant_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        notebook_launcher(train(), (), 1, join=True, device="cpu", **wrong)

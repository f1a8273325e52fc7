"""The handle of a run in the background, and what every launch leaves on record."""

from __future__ import annotations

import asyncio
import pickle
import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from notebook_accel import Accelerator, Run, notebook_launcher, runs
from notebook_accel.errors import (
    ConfigError,
    LaunchError,
    NoSuchRank,
    RunInterrupted,
    RunStopped,
    RunTimeout,
)
from notebook_accel.events import context
from notebook_accel.events.logs import Logs
from notebook_accel.events.model import Metrics, Output
from notebook_accel.launch import attempts


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NOTEBOOK_ACCEL_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def report(step: int, loss: float) -> None:
    worker = context.current()
    assert worker is not None
    worker.emitter.send(Metrics(worker.emitter.rank, [("loss", step, loss)]))


def train(num_steps: int = 3, work_s: float = 0.0, fail: str = "") -> int:
    print("hello")
    for step in range(1, num_steps + 1):
        report(step, 1 / step)
        time.sleep(work_s)
    if fail:
        raise ValueError(fail)
    return num_steps


def launch(*args: Any, **more: Any) -> Any:
    return notebook_launcher(train, args, more.pop("num_processes", 1), device="cpu", **more)


def eventually(check: Any, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# ── in the background ─────────────────────────────────────────────────────────────────────────


def test_a_run_in_the_background_is_looked_at_while_it_goes_on_and_stopped() -> None:
    run = launch(10_000, 0.01, block=False)
    assert isinstance(run, Run) and not run.done
    eventually(lambda: len(run.history.get("loss") or ()) >= 3)
    assert run.logs(0) == run.logs[0] == "hello\n"
    assert runs.last().id == run.id and runs.get(run).ended == "running"
    assert run.path is not None and run.path.name == run.id
    assert repr(run).startswith("Run(running, step ")
    run.stop()
    with pytest.raises(RunInterrupted) as caught:
        run.wait(30)
    kept = runs.last()
    assert (kept.id, kept.ended) == (run.id, "stopped")
    assert kept.history["loss"] == run.history["loss"] == caught.value.result.history["loss"]
    assert run.record.ended == "stopped"
    assert re.fullmatch(r"Run\(done: the run was stopped at step \d+\)", repr(run))


def test_a_handle_has_the_values_and_what_was_salvaged_after_the_end() -> None:
    run = launch(3, 0.3, block=False)
    with pytest.raises(
        LaunchError, match="the run is still going: there is no result yet"
    ) as early:
        _ = run[0]
    assert early.value.fix.startswith("call run.wait() first")
    run.wait(30)
    assert run[0] == 3 and run.values == [3] and run.result is run.wait() and run.salvaged == []
    stopped = notebook_launcher(train_a_model, (), 1, device="cpu", block=False)
    eventually(lambda: stopped.history.get("loss"))
    stopped.stop()
    eventually(lambda: stopped.done)
    assert isinstance(stopped.salvaged[0], torch.nn.Linear) and stopped.values == [None]
    assert stopped.result.stopped
    with pytest.raises(ConfigError, match="wait\\(\\) was given a str to wait for") as caught:
        stopped.wait("soon")  # type: ignore[arg-type]
    assert caught.value.fix.startswith("write run.wait(60)")


def test_what_a_failed_run_had_is_there_in_the_background_and_with_the_error() -> None:
    failed = launch(2, 0.0, "too hot", block=False)
    eventually(lambda: failed.done)
    with pytest.raises(ValueError, match="too hot"):
        failed.wait()
    assert failed.result.history["loss"] == [1.0, 0.5] and failed.values == [None]
    assert failed.result.logs == ["hello\n"]
    with pytest.raises(ValueError, match="too hot"):
        _ = failed[0]
    with pytest.raises(ValueError, match="too hot") as caught:
        launch(2, 0.0, "too hot")
    assert caught.value.result.history["loss"] == [1.0, 0.5]  # type: ignore[attr-defined]
    assert runs.get(caught.value).ended == "failed"


def test_an_errors_own_result_is_left_to_it() -> None:
    with pytest.raises(Judged) as caught:
        notebook_launcher(judge, (), 1, device="cpu")
    assert caught.value.result == "guilty"


class Judged(Exception):
    result = "guilty"


def judge() -> None:
    raise Judged


def test_runs_that_go_on_together_are_told_apart_by_their_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    going = [launch(10_000, 0.01, block=False, num_processes=number) for number in (2, 1)]
    eventually(lambda: all(len(run.logs) and all(run.logs) for run in going))
    blocking = launch(1)
    for run in going:
        run.kill()
    for run in going:
        with pytest.raises(RunInterrupted):
            run.wait(30)
    launch(1)
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert blocking[0] == 1
    assert sorted(lines[:2])[0].startswith("Launching on 2 CPU processes, ")
    assert sorted(lines[:2])[1].startswith("[run 2] Launching on 1 CPU process, ")
    for line in ("[run 2] hello", "[run 3] hello"):
        assert lines.count(line) == 1, captured.out
    assert any(re.match(r"\[\d.*\] hello", line) for line in lines), captured.out
    assert lines[-1] == "hello", "one that is alone needs no name"
    assert "\nrun 3: 1 CPU process, " in f"\n{captured.err}"


def train_a_model() -> None:
    accelerator = Accelerator()
    model = torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    while True:
        loss = model(torch.ones(1, 1)).sum()
        accelerator.backward(loss)
        optimizer.step()


def test_a_handle_shows_itself_in_one_short_line() -> None:
    def ended(error: BaseException) -> Run:
        run = Run(lambda handle: (_ for _ in ()).throw(error))
        eventually(lambda: run.done)
        return run

    assert repr(ended(KeyError("boom"))) == "Run(done: KeyError('boom'))"
    explained = LaunchError("no machine came", "none was called", "call one")
    assert repr(ended(explained)) == "Run(done: LaunchError: no machine came)"
    assert len(repr(ended(ValueError("x" * 500)))) == len("Run(done: )") + 100


@pytest.mark.parametrize("ask", ["run", "result", "logs", "logs()"])
def test_a_curve_asked_for_as_a_rank_is_pointed_to_the_history(ask: str) -> None:
    run = launch(1, 0.3, block=False)
    how = {
        "run": lambda: run["loss"],  # also while it goes on
        "result": lambda: run.wait(30)["loss"],
        "logs": lambda: run.logs["loss"],
        "logs()": lambda: run.logs("loss"),
    }
    with pytest.raises(NoSuchRank, match="there is no rank 'loss'") as caught:
        how[ask]()
    assert caught.value.fix.startswith('write run.history["loss"] for a curve')
    run.wait(30)


def test_a_rank_that_a_run_does_not_have_is_refused_by_those_it_has() -> None:
    result = launch(1, num_processes=2)
    for ask in (lambda: result[5], lambda: result.logs(7), lambda: result.logs[-3]):
        with pytest.raises(NoSuchRank, match=r"there is no rank (5|7|-3)") as caught:
            ask()
        assert caught.value.why == "the run has ranks 0 to 1"
        assert isinstance(caught.value, IndexError)
    assert result[-1] == 1 and result.logs[0:2] == ["hello\n", "hello\n"]
    with pytest.raises(NoSuchRank, match="only rank 0"):
        launch(1)[1]
    with pytest.raises(NoSuchRank, match="no rank of this run has started so far"):
        Logs([])(0)


def test_what_is_asked_before_the_run_has_begun_has_an_answer() -> None:
    run = launch(3, block=False)
    assert len(run.history) in (0, 1) and list(run.logs) in ([], [""], ["hello\n"])
    assert run.id, "waits until there is a record"
    assert run.wait(30)[0] == 3


def test_a_run_that_could_not_begin_raises_why_from_its_record_too() -> None:
    run = notebook_launcher(train, (), 1, device="cpu", start_method="fork", block=False)
    run.wait(30)
    broken = Run(lambda handle: (_ for _ in ()).throw(LaunchError("no such machine")))
    with pytest.raises(LaunchError, match="no such machine"):
        _ = broken.record
    with pytest.raises(LaunchError, match="no such machine"):
        broken.wait(5)


def test_a_run_is_awaited_and_killed() -> None:
    async def wait() -> Any:
        return await launch(4, block=False)

    assert asyncio.run(wait())[0] == 4
    run = launch(10_000, 0.01, block=False)
    eventually(lambda: run.history.get("loss"))
    run.kill()
    with pytest.raises(RunInterrupted):
        run.wait(30)
    assert runs.last().story.ranks[0].ended == "ended by the launcher"


@pytest.mark.parametrize("end", [Run.stop, Run.kill])
def test_an_event_loop_survives_that_a_run_it_awaits_is_ended(end: Any) -> None:
    async def wait() -> Any:
        run = launch(10_000, 0.01, block=False)
        waiting = asyncio.gather(run, asyncio.wait_for(run, 30), return_exceptions=True)
        while not run.history.get("loss"):
            await asyncio.sleep(0.01)
        end(run)
        return run, await waiting

    run, stopped = asyncio.run(wait())
    for one in stopped:
        assert isinstance(one, RunStopped) and one.result is run.result
        assert re.match("the run was (stopped|killed) at step ", str(one))


def test_a_running_run_is_exported_and_reported(tmp_path: Path) -> None:
    run = launch(10_000, 0.01, block=False)
    eventually(lambda: run.history.get("loss"))
    assert "running" in run.report(tmp_path / "report.html").read_text()
    script = run.export_script(tmp_path / "train.py").read_text()
    assert "train(10000, 0.01)" in script
    run.kill()
    with pytest.raises(RunInterrupted):
        run.wait(30)


# ── on record ─────────────────────────────────────────────────────────────────────────────────


def test_every_launch_leaves_a_record(root: Path) -> None:
    result = launch(5, num_processes=2, env={"NCCL_DEBUG": "WARN", "MY_TOKEN": "abcdefgh"})
    kept = runs.get(result.id)
    assert kept.path == result.path and kept.path is not None and kept.path.parent == root
    assert kept.history["loss"] == result.history["loss"] and kept.logs == result.logs
    assert kept.config["num_processes"] == 2 and kept.about.function == "train"
    assert kept.about.arguments == {"num_steps": 5, "work_s": 0.0, "fail": ""}
    assert kept.about.environment["NCCL_DEBUG"] == "WARN"
    assert "abcdefgh" not in (kept.path / "record.json").read_text()
    assert [rank.ended for rank in kept.story.ranks] == ["returned", "returned"]


def test_secrets_that_a_launch_was_given_are_in_no_file(root: Path) -> None:
    def main(password: str) -> None:
        print(f"logging in with {password}")

    result = notebook_launcher(main, ("open sesame",), 1, device="cpu")
    assert result.logs(0) == "logging in with open sesame\n"
    assert [
        path.name for path in root.rglob("*") if path.is_file() if b"sesame" in path.read_bytes()
    ] == []
    assert "logging in with" in runs.last().logs(0)


class Shy:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("do not look at me")


def test_an_argument_that_cannot_be_looked_at_fails_no_launch() -> None:
    def main(one: Any) -> None: ...

    result = notebook_launcher(main, (Shy(),), 1, device="cpu")
    assert result.record.about.arguments == {"one": "<Shy>"}


def test_failures_timeouts_and_each_attempt_are_on_record() -> None:
    with pytest.raises(ValueError, match="too hot"):
        launch(2, 0.0, "too hot", max_restarts=1)
    second, first = runs.list()
    assert (first.ended, second.ended) == ("failed", "failed")
    assert second.story.error == "ValueError: too hot" and second.config["restart"] == 1
    with pytest.raises(RunTimeout):
        launch(10_000, 0.01, timeout_s=1.0)
    assert runs.last().ended == "failed" and "RunTimeout" in runs.last().story.error


def test_a_run_in_this_process_is_on_record_too() -> None:
    result = launch(4, start_method="inline")
    assert runs.last().id == result.id and runs.last().history["loss"] == result.history["loss"]
    with pytest.raises(ValueError, match="too hot"):
        launch(1, 0.0, "too hot", start_method="inline")
    kept = runs.last()
    assert kept.ended == "failed" and kept.story.ranks[0].ended == "raised ValueError: too hot"


def test_a_result_can_be_pickled_with_its_record(tmp_path: Path) -> None:
    again = pickle.loads(pickle.dumps(launch(3)))
    assert again.history["loss"] == [1, 1 / 2, 1 / 3] and again.logs(0) == "hello\n"
    assert again.record.ended == "finished" and again.record.history["loss"][0] == 1
    with pytest.raises(ConfigError, match="this result does not know its function any more"):
        again.export_script(tmp_path / "train.py")


def test_a_seed_that_workers_start_from_is_on_record() -> None:
    torch.manual_seed(5)
    assert launch(1).record.config["seed"] == 5
    torch.rand(1)
    assert "seed" not in launch(1).record.config


def test_a_picture_that_was_drawn_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    class Drawing:
        png = b"a picture"

        def handle(self, event: Any) -> None: ...
        def tick(self) -> None: ...
        def close(self) -> None: ...

    monkeypatch.setattr(attempts, "view", lambda *more: Drawing())
    path = launch(2).path
    assert path is not None and (path / "picture.png").read_bytes() == b"a picture"


def test_the_view_hears_how_many_workers_have_started(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []

    class Listening:
        def handle(self, event: Any) -> None:
            if not isinstance(event, Output):
                heard.append(event)

        def tick(self) -> None: ...
        def close(self) -> None: ...

    monkeypatch.setattr(attempts, "view", lambda *more: Listening())
    launch(1, num_processes=2)
    told = [(e.done, e.total) for e in heard if getattr(e, "name", "") == "starting workers"]
    assert told == [(0, 2), (1, 2), (2, 2)]

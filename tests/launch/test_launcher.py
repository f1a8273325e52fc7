"""Launches from a plain Python process: values, arguments, errors, surroundings, ways to start."""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import notebook_accel
from notebook_accel import (
    Accelerator,
    ConfigError,
    LaunchError,
    RunInterrupted,
    RunResult,
    RunTimeout,
    WorkerDied,
    debug_launcher,
    notebook_launcher,
)
from notebook_accel.launch import forkserver

ROOT = Path(notebook_accel.__file__).parents[1]
cpu = functools.partial(notebook_launcher, device="cpu")


@pytest.fixture(scope="module", autouse=True)
def no_forkserver_is_left() -> Any:
    yield
    notebook_accel.shutdown()


def who() -> tuple[int, int]:
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


# ── values and arguments ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("num_processes", [1, 2, 4])
def test_the_result_holds_every_ranks_value_in_rank_order(num_processes: int) -> None:
    """Case NB02: values come back, in the same shape for one process and for many."""
    run = cpu(lambda x: 10 * who()[0] + x, (7,), num_processes)
    assert isinstance(run, RunResult)
    assert list(run) == [10 * rank + 7 for rank in range(num_processes)]
    assert len(run) == num_processes
    assert run.values[0] == run[0] == 7


@pytest.mark.parametrize("num_processes", [1, 2])
def test_what_a_worker_changes_stays_in_the_worker_for_any_process_count(
    num_processes: int,
) -> None:
    """Case NB02: side effects on the notebook's objects do not depend on the process count."""
    model, seen = nn.Linear(1, 1, bias=False), []
    before = model.weight.item()

    def main(model: nn.Linear) -> float:
        seen.append(1)
        with torch.no_grad():
            model.weight += 1
        return model.weight.item()

    run = cpu(main, (model,), num_processes)
    assert run[0] == pytest.approx(before + 1)
    assert model.weight.item() == before
    assert seen == []


def test_ranks_form_one_world_over_gloo_on_a_machine_without_accelerators(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Case NB01: two processes are a world of two, and the launch line names CPU processes."""

    def main() -> tuple[int, int, str]:
        accelerator = Accelerator()
        return accelerator.process_index, accelerator.num_processes, dist.get_backend()

    assert list(cpu(main, num_processes=2)) == [(0, 2, "gloo"), (1, 2, "gloo")]
    assert "Launching on 2 CPU processes, " in capsys.readouterr().out


def test_an_accelerator_made_before_the_launch_does_not_leave_workers_alone() -> None:
    """Case NB04: state of the launching process is not what workers believe about themselves."""
    here = Accelerator(cpu=True)
    assert here.num_processes == 1

    def main() -> tuple[int, int]:
        accelerator = Accelerator()
        return accelerator.process_index, accelerator.num_processes

    assert list(cpu(main, num_processes=2)) == [(0, 2), (1, 2)]


def test_without_a_count_there_is_one_process_on_a_machine_without_accelerators(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Case NB10: the default works, and says what it is."""
    if torch.cuda.is_available():
        pytest.skip("this machine has accelerators")
    assert list(notebook_launcher(who)) == [(0, 1)]
    assert "note: no accelerator here: 1 process on the CPU" in capsys.readouterr().out


@pytest.mark.parametrize("count", [0, -1, -2, True, 2.0, "2"])
def test_an_impossible_count_is_refused_before_anything_starts(count: Any) -> None:
    """Case NB10."""
    with pytest.raises(ConfigError, match="num_processes=") as caught:
        cpu(who, (), count)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("args", [5, "ab", {"a": 1}, {1, 2}])
def test_arguments_that_are_no_sequence_are_refused_with_the_call_to_write(args: Any) -> None:
    """Case NB10: a bare int is named, a string is not spread by character."""
    with pytest.raises(ConfigError, match="args is a tuple or a list"):
        cpu(lambda *a: a, args, 1)


def test_a_list_of_arguments_is_spread_and_kwargs_are_named() -> None:
    run = cpu(lambda a, b, c=0: (a, b, c), [1, [2]], 2, kwargs={"c": 3})
    assert list(run) == [(1, [2], 3)] * 2


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_local_functions_classes_and_lambdas_launch(start_method: str) -> None:
    """Case NB11: closures, classes made inside, a lambda as collate function, loader workers."""
    k = 3

    def main() -> list[list[int]]:
        class Multiples(Dataset[int]):
            def __len__(self) -> int:
                return 4

            def __getitem__(self, index: int) -> int:
                return index * k

        loader = DataLoader(Multiples(), 1, num_workers=1, collate_fn=lambda batch: list(batch))
        prepared = Accelerator().prepare(loader)
        return list(prepared)

    run = cpu(main, (), 2, start_method=start_method)
    assert list(run) == [[[0], [6]], [[3], [9]]]


class Trainer:
    def __init__(self, start: int) -> None:
        self.start = start

    def train(self, more: int) -> int:
        return self.start + more

    def __call__(self, more: int) -> int:
        return self.start - more


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
@pytest.mark.parametrize(
    ("function", "value"),
    [
        (Trainer(5).train, 7),
        (Trainer(5), 3),
        (functools.partial(Trainer(5).train, 4), 9),
        (lambda more: more, 2),
    ],
    ids=["bound method", "callable object", "partial", "lambda"],
)
def test_anything_that_can_be_called_launches(function: Any, value: int, start_method: str) -> None:
    args = () if isinstance(function, functools.partial) else (2,)
    assert list(cpu(function, args, 2, start_method=start_method)) == [value] * 2


@pytest.mark.parametrize("num_processes", [1, 2])
def test_the_precision_of_the_launch_is_in_force_on_every_rank(num_processes: int) -> None:
    """Case NB14."""
    run = cpu(lambda: Accelerator().mixed_precision, (), num_processes, "bf16")
    assert list(run) == ["bf16"] * num_processes
    assert list(cpu(lambda: Accelerator().mixed_precision, (), num_processes)) == (
        ["no"] * num_processes
    )


def test_an_unknown_precision_is_refused_with_the_choices() -> None:
    """Case NB14."""
    with pytest.raises(ConfigError, match="'no', 'fp16', 'bf16', 'fp8'"):
        cpu(who, (), 2, "fp17")


def test_objects_built_in_the_notebook_train_alike_in_every_launch_and_stay_as_they_were() -> None:
    """Case NB17: model, optimizer, loader and schedule from the notebook, 2 processes, twice."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    rows = TensorDataset(torch.arange(6.0).unsqueeze(1))
    loader = DataLoader(rows, batch_size=1, shuffle=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    before = model.weight.item()

    def loop(config: Any, model: Any, optimizer: Any, loader: Any, schedule: Any) -> Any:
        accelerator = Accelerator()
        model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
        updates = 0
        for (row,) in loader:
            accelerator.backward(model(row).square().mean())
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            updates += 1
        return updates, accelerator.unwrap_model(model).weight.item()

    args = ({"lr": 1}, model, optimizer, loader, schedule)
    first, second = cpu(loop, args, 2), cpu(loop, args, 2)
    assert first[0][0] == first[1][0] == 3
    assert first[0][1] == first[1][1] == second[0][1] != before
    assert model.weight.item() == before


# ── what comes back ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_results_of_half_a_gigabyte_come_back_from_all_ranks(start_method: str) -> None:
    def main() -> Any:
        rank = who()[0]
        return (
            torch.full((65_000_000,), float(rank)),
            np.full(1_000_000, rank),
            list(range(100_000)),
        )

    run = cpu(main, (), 2, start_method=start_method)
    for rank in range(2):
        tensor, array, numbers = run[rank]
        assert tensor.nbytes == 260_000_000
        assert tensor[0] == tensor[-1] == rank
        assert array.sum() == rank * 1_000_000
        assert numbers[-1] == 99_999


def test_a_prepared_model_and_optimizer_come_back_as_the_plain_ones() -> None:
    def main() -> Any:
        accelerator = Accelerator()
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = accelerator.prepare(model, optimizer)
        accelerator.backward(model(torch.ones(1, 2)).sum())
        optimizer.step()
        return model, optimizer, model.state_dict()

    model, optimizer, _ = cpu(main, (), 2)[0]
    assert type(model) is nn.Linear
    assert type(optimizer) is torch.optim.SGD
    assert optimizer.param_groups[0]["params"][0] is model.weight


def test_a_result_that_cannot_travel_is_an_error_that_names_it() -> None:
    def main() -> Any:
        print("trained for hours")
        return {"model": nn.Linear(1, 1), "more": [1, threading.Lock()]}

    words = r"what rank 0 returned at \['more'\]\[1\] \(lock\) cannot travel"
    with pytest.raises(LaunchError, match=words) as caught:
        cpu(main, (), 1)
    assert caught.value.result.logs == ["trained for hours\n"]  # nothing else is lost


def test_the_result_has_the_curve_the_output_and_a_short_repr() -> None:
    def main() -> None:
        accelerator = Accelerator()
        model = nn.Linear(1, 1)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
        for step in range(5):
            accelerator.backward(model(torch.ones(1, 1)).square().sum())
            optimizer.step()
            optimizer.zero_grad()
            accelerator.log({"twice": 2.0 * step})
        print(f"rank {who()[0]} says hello")

    run = cpu(main, (), 2)
    assert len(run.history["loss"]) == 5
    assert run.history["twice"] == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert run.logs == ["rank 0 says hello\n", "rank 1 says hello\n"]
    assert repr(run).startswith("RunResult(2 CPU processes, ")
    assert len(repr(run)) < 100
    assert run.duration_s > 0


# ── output ────────────────────────────────────────────────────────────────────────────────────


def test_ten_thousand_lines_of_four_ranks_arrive_whole_and_tagged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def main() -> None:
        rank = who()[0]
        for line in range(10_000):
            print(f"rank {rank} line {line}")

    cpu(main, (), 4)
    printed = capsys.readouterr().out.splitlines()
    lines = [line for line in printed if not line.startswith(("note: ", "Launching on "))]
    for rank in range(4):
        mine = [line for line in lines if line.startswith(f"[{rank}] ")]
        assert mine == [f"[{rank}] rank {rank} line {n}" for n in range(10_000)]
    assert len(lines) == 40_000


def test_native_and_subprocess_output_is_captured_and_tagged(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def main() -> None:
        os.write(1, b"from native code\n")
        subprocess.run(["echo", "from a subprocess"], check=True)
        print("no end of line", end="")

    cpu(main, (), 2)
    out = capfd.readouterr().out
    for rank in range(2):
        for line in ("from native code", "from a subprocess", "no end of line"):
            assert f"[{rank}] {line}\n" in out or f"[0,1] {line}\n" in out


def test_what_accelerator_print_says_is_said_once_and_untagged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cpu(lambda: Accelerator().print("epoch", 1, sep=" = "), (), 2)
    assert capsys.readouterr().out.splitlines()[1:] == ["epoch = 1"]


def test_input_is_refused_with_the_cure() -> None:
    with pytest.raises(LaunchError, match="cannot be answered in worker 0") as caught:
        cpu(lambda: input("name? "), (), 1)
    assert "pass the answer in args" in str(caught.value)


# ── failures ──────────────────────────────────────────────────────────────────────────────────


class Refused(Exception):
    def __init__(self, code: int, where: str) -> None:
        super().__init__(f"{where} refused {code}")
        self.code = code
        self.handle = threading.Lock()  # cannot travel


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
@pytest.mark.parametrize("elsewhere", ["asleep", "in a collective"])
def test_the_cell_gets_the_users_own_exception_from_the_right_rank(
    elsewhere: str, start_method: str
) -> None:
    """Case NB07: a, b and c; the broken connection of the other rank is not what is shown."""

    def main() -> None:
        dist.init_process_group("gloo")
        if who()[0] == 1:
            raise Refused(7, "disk")
        time.sleep(30) if elsewhere == "asleep" else dist.barrier()

    with pytest.raises(Refused, match="disk refused 7") as caught:
        cpu(main, (), 2, start_method=start_method)
    error = caught.value
    assert error.code == 7
    assert error.__notes__[0].startswith("raised in rank 1, File ")
    assert "test_launcher.py:" in error.__notes__[0]
    assert 'raise Refused(7, "disk")' in str(error.__cause__)
    assert "peer" not in str(error.__cause__)
    told = "".join(traceback.format_exception(error))
    assert told.count('raise Refused(7, "disk")') == 1
    assert "supervise.py" not in told


def test_the_right_rank_is_blamed_every_time_while_others_sit_in_a_collective() -> None:
    def main() -> None:
        dist.init_process_group("gloo")
        if who()[0] == 2:
            raise ValueError("mine")
        dist.all_reduce(torch.ones(1))

    for _ in range(5):
        with pytest.raises(ValueError, match="mine") as caught:
            cpu(main, (), 4)
        assert "raised in rank 2, " in caught.value.__notes__[0]


def test_the_same_failure_of_all_ranks_is_told_once() -> None:
    def main() -> None:
        raise RuntimeError(f"no data for rank {who()[0]}")

    with pytest.raises(RuntimeError, match="no data for rank") as caught:
        cpu(main, (), 3)
    assert "raised in ranks 0-2" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("leave", "words"),
    [
        (lambda: sys.exit(3), r"rank 1 called sys\.exit\(3\)"),
        (lambda: os._exit(3), "rank 1 left with exit code 3, before its first step"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "rank 1 was killed by SIGKILL"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "rank 1 was killed by SIGSEGV"),
        (lambda: None, "rank 1 returned early, before its first step, while rank 0 waited"),
    ],
    ids=["sys.exit", "os._exit", "SIGKILL", "SIGSEGV", "early return"],
)
def test_a_rank_that_leaves_is_named_and_how(leave: Any, words: str) -> None:
    """Case NB16: each ends the run at once, not after the collective's timeout."""

    def main() -> None:
        dist.init_process_group("gloo")
        dist.barrier()
        if who()[0] == 1:
            return leave()
        dist.barrier()
        return None

    with pytest.raises(WorkerDied, match=words) as caught:
        cpu(main, (), 2, timeout_s=20)
    assert caught.value.rank == 1
    assert caught.value.fix


def test_leaving_with_exit_code_zero_counts_as_a_return() -> None:
    assert list(cpu(lambda: sys.exit(0), (), 2)) == [None, None]


def test_a_rank_that_ignores_being_asked_is_killed_and_the_cause_still_told() -> None:
    def main() -> None:
        if who()[0] == 1:
            time.sleep(0.3)
            raise ValueError("the cause")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)

    with pytest.raises(ValueError, match="the cause"):
        cpu(main, (), 2)


def test_a_run_that_takes_too_long_says_where_each_rank_was() -> None:
    def stuck_here() -> None:
        time.sleep(60)

    def main() -> str:
        if who()[0] == 0:
            return "early"
        stuck_here()
        return "late"

    with pytest.raises(RunTimeout, match=r"longer than timeout_s=2\.5") as caught:
        cpu(main, (), 2, timeout_s=2.5)  # in which rank 0 has returned on a busy machine too
    assert "rank 0 had returned" in str(caught.value)
    assert "in stuck_here, before its first step" in str(caught.value)
    assert caught.value.result.values[0] == "early"
    assert isinstance(caught.value, TimeoutError)


def test_ranks_start_again_after_a_failure_while_restarts_are_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> str:
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        if attempt != "2":
            raise OSError(f"flaky {attempt}")
        return attempt

    assert list(cpu(main, (), 2, max_restarts=3)) == ["2", "2"]
    out = capsys.readouterr().out
    assert "note: OSError: flaky 0" in out
    assert "(2 of 3 restarts)" in out
    with pytest.raises(OSError, match="flaky 1"):
        cpu(main, (), 2, max_restarts=1)


def test_a_launch_inside_a_worker_is_refused() -> None:
    with pytest.raises(LaunchError, match="rank 0 of a run tried to launch another run"):
        cpu(lambda: cpu(who, (), 2), (), 1)


def test_an_argument_that_cannot_reach_a_fresh_worker_is_named() -> None:
    with pytest.raises(LaunchError, match="argument 1 \\(lock, "):
        cpu(lambda a, b: None, (1, threading.Lock()), 2, start_method="forkserver")


# ── surroundings ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_environment_folder_and_path_of_the_moment_reach_the_workers(
    start_method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fresh_module.py").write_text("VALUE = 41\n")

    def main() -> Any:
        import fresh_module

        return os.environ.get("COLOR"), os.environ.get("SIZE"), os.getcwd(), fresh_module.VALUE

    cpu(who, (), 2, start_method=start_method)  # the forkserver is warm from here on
    monkeypatch.setenv("COLOR", "green")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    run = cpu(main, (), 2, start_method=start_method, env={"SIZE": "3"})
    assert list(run) == [("green", "3", str(tmp_path), 41)] * 2
    assert "SIZE" not in os.environ


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_random_state_and_default_dtype_are_the_notebooks(start_method: str) -> None:
    torch.manual_seed(5)
    expected = torch.rand(2).tolist()
    torch.manual_seed(5)
    torch.set_default_dtype(torch.float64)
    try:
        run = cpu(lambda: torch.rand(1).dtype, (), 1, start_method=start_method)
        assert run[0] == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    run = cpu(lambda: torch.rand(2).tolist(), (), 2, start_method=start_method)
    assert list(run) == [expected, expected]


def test_nothing_of_the_launching_process_is_changed() -> None:
    def state() -> Any:
        return (
            dict(os.environ),
            {number: signal.getsignal(number) for number in signal.Signals},
            torch.get_num_threads(),
            sorted(thread.name for thread in threading.enumerate()),
            sorted(os.listdir("/proc/self/fd")) if sys.platform == "linux" else [],
            os.getcwd(),
        )

    cpu(who, (), 2)  # imports and other first times
    before = state()
    cpu(who, (), 2)
    with pytest.raises(ZeroDivisionError):
        cpu(lambda: 1 / 0, (), 2)
    assert state() == before


def test_threads_of_each_worker_share_the_cores_unless_the_user_says_otherwise() -> None:
    from notebook_accel.launch.devices import usable_cores

    def main() -> tuple[int, str]:
        return torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS", "")

    assert cpu(main, (), 2)[0][0] == max(1, usable_cores() // 2)
    assert list(cpu(main, (), 2, env={"OMP_NUM_THREADS": "3"})) == [(3, "3")] * 2


@pytest.mark.parametrize("trial", range(3))
def test_forked_workers_with_several_threads_survive_what_the_parent_did_before(
    trial: int,
) -> None:
    """Case NB13: parallel operators and a backward pass in the parent, two threads a worker."""
    torch.set_num_threads(2)
    x = torch.rand(600, 600, requires_grad=True)
    (x @ x).relu().sum().backward()

    def main() -> float:
        accelerator = Accelerator()
        model = accelerator.prepare(nn.Linear(600, 600))
        for _ in range(3):
            accelerator.backward(model(torch.rand(64, 600)).square().mean())
        return float((torch.rand(600, 600) @ torch.rand(600, 600)).sum())

    run = cpu(main, (), 2, env={"OMP_NUM_THREADS": "2"}, start_method="fork", timeout_s=60)
    assert all(value > 0 for value in run)


def test_an_opened_accelerator_means_fresh_workers_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case NB05, with the stand-in that the case names."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert list(cpu(who, (), 2)) == [(0, 2), (1, 2)]
    assert "by forkserver (CUDA is open in this kernel)" in capsys.readouterr().out
    with pytest.raises(LaunchError, match="cannot fork workers: CUDA is open"):
        cpu(who, (), 2, start_method="fork")


def test_only_asking_for_devices_does_not_count_as_opening_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Case NB05: on a machine without CUDA the question opens nothing."""
    if torch.version.cuda is not None:
        pytest.skip("a CUDA build of torch may open the driver for this question")
    torch.cuda.is_available()
    torch.cuda.device_count()
    cpu(who, (), 2)
    assert "by fork (" in capsys.readouterr().out


def test_loaders_with_live_persistent_workers_start_new_ones_in_a_worker() -> None:
    loader = DataLoader(range(8), batch_size=2, num_workers=1, persistent_workers=True)
    assert len(list(loader)) == 4

    def main() -> list[list[int]]:
        return [batch.tolist() for batch in loader]

    try:
        run = cpu(main, (), 2, start_method="fork", timeout_s=60)
    finally:
        loader._iterator._shutdown_workers()
        loader._iterator = None
    assert list(run) == [[[0, 1], [2, 3], [4, 5], [6, 7]]] * 2


def test_exit_functions_of_a_worker_run_and_those_of_the_parent_do_not(tmp_path: Path) -> None:
    import atexit

    def in_parent() -> None:
        (tmp_path / "parent").touch()

    def main() -> None:
        atexit.register((tmp_path / f"rank{who()[0]}").touch)

    atexit.register(in_parent)
    try:
        cpu(main, (), 2)
    finally:
        atexit.unregister(in_parent)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank0", "rank1"]


# ── ways to call ──────────────────────────────────────────────────────────────────────────────


def test_untouched_torch_code_can_make_its_own_process_group() -> None:
    def main() -> list[float]:
        dist.init_process_group("gloo")
        total = torch.tensor([float(dist.get_rank() + 1)])
        dist.all_reduce(total)
        return total.tolist()

    for count in (1, 2, 4, 2):
        run = cpu(main, (), count)
        assert list(run) == [[count * (count + 1) / 2]] * count


def test_spawn_starts_fresh_interpreters() -> None:
    run = cpu(lambda: (who(), os.getppid()), (), 2, start_method="spawn")
    assert [value[0] for value in run] == [(0, 2), (1, 2)]
    assert run[0][1] == os.getpid()
    assert run.start_method == "spawn"


def test_inline_calls_the_function_here_and_keeps_the_curve() -> None:
    def main() -> int:
        accelerator = Accelerator()
        model = nn.Linear(1, 1)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(3):
            accelerator.backward(model(torch.ones(1, 1)).sum())
            optimizer.step()
        return os.getpid()

    run = cpu(main, (), 1, start_method="inline", env={"ONLY_HERE": "1"})
    assert run[0] == os.getpid()
    assert len(run.history["loss"]) == 3
    assert "ONLY_HERE" not in os.environ
    with pytest.raises(ConfigError, match="start_method='inline' with 2 ranks"):
        cpu(main, (), 2, start_method="inline")


def test_a_callers_rendezvous_settings_stay_as_they_are() -> None:
    """E7."""
    settings: dict[str, Any] = {"timeout": 30}
    assert list(cpu(who, (), 2, rdzv_conf=settings)) == [(0, 2), (1, 2)]
    assert settings == {"timeout": 30}


def test_a_launch_from_a_thread_works_and_ends_with_it() -> None:
    """E9; without a word of signal handlers."""
    values: list[Any] = []
    thread = threading.Thread(target=lambda: values.extend(cpu(who, (), 2)))
    thread.start()
    thread.join(60)
    assert values == [(0, 2), (1, 2)]


def test_a_handle_waits_for_its_result_and_raises_its_error() -> None:
    handle = cpu(who, (), 2, block=False)
    assert list(handle.wait(60)) == [(0, 2), (1, 2)]
    assert handle.done
    failing = cpu(lambda: 1 / 0, (), 2, block=False)
    with pytest.raises(ZeroDivisionError):
        failing.wait(60)


def test_a_handle_stops_a_run_or_kills_it() -> None:
    with pytest.raises(KeyboardInterrupt) as stopped:
        stop_when_up("stop")
    assert str(stopped.value) == (
        "the run was stopped at step 0; this exception's .result (sys.last_value.result in the "
        "next cell) has the curve"
    )
    with pytest.raises(KeyboardInterrupt) as killed:
        stop_when_up("kill")
    assert str(killed.value) == (
        "the run was killed at step 0; this exception's .result (sys.last_value.result in the "
        "next cell) has the curve; there are no models in .salvaged, for rank 0 was killed"
    )


def test_a_run_killed_before_its_ranks_were_made_leaves_no_pipe_open() -> None:
    cpu(who, (), 2, start_method="forkserver")
    server = forkserver.running()._process.pid
    before = psutil.Process().num_fds()
    os.kill(server, signal.SIGSTOP)
    try:
        handle = cpu(who, (), 2, start_method="forkserver", block=False)
        handle.kill()
        with pytest.raises(RunInterrupted):
            handle.wait(60)
    finally:
        os.kill(server, signal.SIGCONT)
    assert psutil.Process().num_fds() == before
    assert len(cpu(who, (), 2, start_method="forkserver")) == 2  # it has let the other two go


def stop_when_up(how: str) -> RunResult:
    read, write = os.pipe()

    def main() -> None:
        os.write(write, b"x")
        time.sleep(60)

    handle = cpu(main, (), 2, block=False)
    with pytest.raises(LaunchError, match="the run is still going after"):
        handle.wait(0.01)
    os.read(read, 1)
    os.read(read, 1)
    getattr(handle, how)()
    os.close(read)
    os.close(write)
    result: RunResult = handle.wait(30)
    return result


def test_a_port_of_the_users_is_used_and_a_busy_one_is_refused() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 cannot be used"):
            cpu(who, (), 2, use_port=port)
    assert cpu(lambda: os.environ["MASTER_PORT"], (), 2, use_port=str(port))[1] == str(port)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"use_port": "http"}, "use_port='http' is not a port"),
        ({"use_port": 0, "num_nodes": 2}, "use_port=0 with several machines"),
        ({"rdzv_backend": "etcd"}, "rdzv_backend='etcd' is not supported"),
        ({"node_rank": 2}, "node_rank=2, but num_nodes=1"),
        ({"start_method": "frok"}, "start_method='frok' is not known"),
        ({"on_interrupt": "ignore"}, "on_interrupt='ignore' is not known"),
        ({"timeout_s": 0}, "timeout_s=0 is out of range"),
        ({"max_restarts": -1}, "max_restarts=-1 is out of range"),
        ({"env": {"A": 1}}, "env"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_settings_that_cannot_be_are_refused_before_anything_starts(
    wrong: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        cpu(who, (), 2, **wrong)


@pytest.mark.parametrize(
    "start_method",
    ["fork", *(pytest.param(m, marks=pytest.mark.slow) for m in ("forkserver", "spawn"))],
)
def test_two_machines_form_one_world(start_method: str) -> None:
    """Two launchers on this machine stand for two machines; each reports its own ranks."""
    with socket.socket() as finder:
        finder.bind(("127.0.0.1", 0))
        port = finder.getsockname()[1]

    def main() -> list[int]:
        accelerator = Accelerator()
        model = nn.Linear(1, 1)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
        for _ in range(3):
            accelerator.backward(model(torch.ones(1, 1)).sum())
            optimizer.step()
        print(f"rank {accelerator.process_index}")
        seen: list[Any] = [None] * accelerator.num_processes
        dist.all_gather_object(seen, accelerator.process_index)
        return seen

    how = {"start_method": start_method, "num_nodes": 2, "use_port": port}
    handle = cpu(main, (), 2, block=False, node_rank=1, **how)
    first = cpu(main, (), 2, node_rank=0, **how)
    second = handle.wait(60)
    assert list(first) == list(second) == [[0, 1, 2, 3]] * 2
    assert [len(first.history["loss"]), len(second.history["loss"])] == [3, 3]
    assert second.logs == ["rank 2\n", "rank 3\n"]


def test_debug_launcher_runs_forked_cpu_ranks() -> None:
    assert list(debug_launcher(who)) == [(0, 2), (1, 2)]


@pytest.mark.parametrize(
    ("in_notebook", "in_worker", "kinds", "early"),
    [
        (True, False, ["cuda", "cuda"], True),
        (True, False, [], False),
        (True, False, ["mps"], False),
        (True, True, ["cuda"], False),
        (False, False, ["cuda"], False),
    ],
)
def test_a_notebook_with_gpus_warms_its_forkserver_before_the_first_launch(
    in_notebook: bool, in_worker: bool, kinds: list[str], early: bool
) -> None:
    from notebook_accel.launch.launcher import wants_early_forkserver

    assert wants_early_forkserver(in_notebook, in_worker, kinds) is early


SCRIPT = """
from notebook_accel import notebook_launcher

class Net:
    pass

def main():
    import os
    print("rank", os.environ["RANK"])
    return Net()

{guard}
run = notebook_launcher(main, num_processes=2, device="cpu", start_method="{method}")
assert [type(value) for value in run] == [Net, Net]
print("top level ran")
"""


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("guard", ["", "if __name__ == '__main__':"])
def test_a_script_launches_with_and_without_a_main_guard(
    guard: str, method: str, tmp_path: Path
) -> None:
    lines = SCRIPT.format(guard=guard, method=method).split(guard + "\n") if guard else None
    text = SCRIPT.format(guard="", method=method)
    if lines is not None:
        head, tail = lines
        text = head + guard + "\n" + "\n".join("    " + line for line in tail.splitlines())
    script = tmp_path / "script.py"
    script.write_text(text)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("top level ran") == 1
    assert "[0] rank 0\n" in done.stdout
    assert "[1] rank 1\n" in done.stdout

"""Turns, triggers, logs, bars, trackers, local SGD and gradient hooks among two real ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from notebook_accel import Accelerator, notebook_launcher
from notebook_accel.config.wishes import DDP
from notebook_accel.errors import ConfigError


def take_turns(folder: str) -> dict[str, Any]:
    import time

    import numpy as np

    accelerator = Accelerator()
    rank = accelerator.process_index
    said: dict[str, Any] = {}

    file = Path(folder) / "made"
    with accelerator.main_process_first():  # CT01
        if rank == 0:
            time.sleep(0.3)
            file.touch()
        said["sees"] = file.exists()
    with accelerator.local_main_process_first():
        if rank == 0:
            (Path(folder) / "local").touch()
        said["sees_local"] = (Path(folder) / "local").exists()
    try:
        with accelerator.main_process_first():
            if rank == 0:
                raise ValueError("only here")
            said["entered"] = True
    except ValueError:
        said["raised"] = True
    accelerator.wait_for_everyone()  # both go on together

    for name, inputs in {
        "tuple": (1, 2, 3),
        "array": np.arange(3),
        "range": range(3),
        "dict": {"a": [1, 2, 3], "b": np.arange(3)},
    }.items():  # CT03
        with accelerator.split_between_processes(inputs, apply_padding=name == "tuple") as mine:
            said[name] = mine
    try:
        with accelerator.split_between_processes(iter([1, 2])):
            said["generator"] = "went through"
    except TypeError as error:
        said["generator"] = str(error)

    if rank == 1:  # CT04
        accelerator.set_trigger()
    said["trigger"] = [accelerator.check_trigger(), accelerator.check_trigger()]

    where = {
        "main": accelerator.on_main_process,
        "local_main": accelerator.on_local_main_process,
        "last": accelerator.on_last_process,
        "first": accelerator.on_process(process_index=0),
        "second": accelerator.on_process(process_index=1),
        "local_second": accelerator.on_local_process(local_process_index=1),
    }
    said["ran"] = {name: decorate(lambda x: x + 1)(1) for name, decorate in where.items()}
    said["given"] = accelerator.on_process(lambda: "here", process_index=1)()
    try:
        accelerator.on_process(process_index=2)
    except ConfigError as error:
        said["nobody"] = str(error)
    return said


def log_on_ranks(folder: str) -> dict[str, Any]:
    import io
    import logging

    from notebook_accel.runtime.bars import tqdm
    from notebook_accel.runtime.logs import get_logger

    lines = io.StringIO()
    logging.getLogger("tools").addHandler(logging.StreamHandler(lines))
    logger = get_logger("tools", log_level="INFO")
    logger.info("before any state")  # TR02
    logger.info("everybody", main_process_only=False)
    logger.warning_once("once")
    logger.warning_once("once")
    said: dict[str, Any] = {}
    said["joined_by_logging"] = torch.distributed.is_initialized()
    said["bars"] = [
        tqdm(range(1), main_process_only=only, file=io.StringIO()).disable for only in (True, False)
    ]
    accelerator = Accelerator(log_with="jsonl", project_dir=folder)
    logger.info("in turn", main_process_only=False, in_order=True)
    said["lines"] = lines.getvalue().splitlines()

    accelerator.init_trackers("run", config={"lr": 1})
    accelerator.log({"loss": float(accelerator.process_index)})
    tracker = accelerator.get_tracker("jsonl")
    tracker.log({"by_hand": accelerator.process_index})
    accelerator.get_tracker("jsonl", unwrap=True)
    said["trackers"] = len(accelerator.trackers)
    accelerator.end_training()
    return said


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tools")


@pytest.fixture(scope="module")
def turns(folder: Path) -> Iterator[Any]:
    yield notebook_launcher(take_turns, (str(folder),), 2, device="cpu")


@pytest.fixture(scope="module")
def logs(folder: Path) -> Iterator[Any]:
    yield notebook_launcher(log_on_ranks, (str(folder),), 2, device="cpu")


def test_the_first_goes_first_and_lets_the_others_go_when_it_fails(turns) -> None:
    """CT01."""
    for said in turns:
        assert said["sees"] and said["sees_local"]
    assert turns[0].get("raised") and not turns[0].get("entered")
    assert turns[1].get("entered") and not turns[1].get("raised")


def test_sequences_of_every_kind_are_split(turns) -> None:
    """CT03."""
    assert [said["tuple"] for said in turns] == [(1, 2), (3, 3)]
    assert [said["array"].tolist() for said in turns] == [[0, 1], [2]]
    assert [list(said["range"]) for said in turns] == [[0, 1], [2]]
    assert [said["dict"]["a"] for said in turns] == [[1, 2], [3]]
    for said in turns:
        assert "list_iterator" in said["generator"] and "list(...) makes one" in said["generator"]


def test_one_rank_s_alarm_reaches_all_once(turns) -> None:
    """CT04."""
    assert [said["trigger"] for said in turns] == [[True, False]] * 2


def test_functions_run_where_they_were_sent(turns) -> None:
    first, second = turns
    assert {name for name, value in first["ran"].items() if value == 2} == {
        "main",
        "local_main",
        "first",
    }
    assert {name for name, value in second["ran"].items() if value == 2} == {
        "last",
        "second",
        "local_second",
    }
    assert (first["given"], second["given"]) == (None, "here")


def test_a_function_that_would_run_nowhere_is_refused(turns) -> None:
    assert "on_process got process_index=2, and there are 2 ranks" in turns[0]["nobody"]
    assert "would run nowhere" in turns[0]["nobody"]
    assert "@accelerator.on_process(process_index=0), or up to 1" in turns[0]["nobody"]


def test_alone_a_function_runs_wherever_it_was_sent() -> None:
    alone = Accelerator(cpu=True)
    assert alone.on_process(lambda: 5, process_index=3)() == 5
    assert alone.on_local_process(lambda: 6, local_process_index=1)() == 6
    assert alone.on_local_main_process(lambda: 7)() == alone.on_last_process(lambda: 7)() == 7
    alone.set_trigger()
    assert (alone.check_trigger(), alone.check_trigger()) == (True, False)
    with pytest.raises(ConfigError, match="on_local_process got local_process_index=None"):
        alone.on_local_process(lambda: 6)


def test_lines_come_once_or_from_every_rank(logs) -> None:
    """TR02."""
    assert not any(said["joined_by_logging"] for said in logs)
    assert logs[0]["lines"] == [
        "[RANK 0] before any state",
        "[RANK 0] everybody",
        "[RANK 0] once",
        "[RANK 0] in turn",
    ]
    assert logs[1]["lines"] == ["[RANK 1] everybody", "[RANK 1] in turn"]


def test_bars_are_shown_once_a_machine(logs) -> None:
    assert [said["bars"] for said in logs] == [[False, False], [True, False]]


def test_only_rank_0_keeps_numbers_and_the_curve_gets_them_too(logs, folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "run.jsonl").read_text().splitlines()]
    assert rows[0]["config"] == {"lr": 1}
    assert [row.get("loss", row.get("by_hand")) for row in rows[1:]] == [0.0, 0]
    assert [said["trackers"] for said in logs] == [1, 0]
    assert list(logs.history["loss"]) == [0.0]


def leave_without_a_word(folder: str, fail: bool) -> None:
    from notebook_accel.runtime.trackers.base import GeneralTracker

    class Told(GeneralTracker):
        name = "told"
        requires_logging_directory = False
        tracker = None

        def finish(self) -> None:
            (Path(folder) / f"finished{accelerator.process_index}").touch()

    accelerator = Accelerator(log_with=Told())
    accelerator.init_trackers("run")
    if fail:
        raise ValueError("the end")


@pytest.mark.parametrize("fail", [False, True])
def test_trackers_are_closed_when_a_function_ends_without_end_training(
    tmp_path: Path, fail: bool
) -> None:
    try:
        notebook_launcher(leave_without_a_word, (str(tmp_path), fail), 2, device="cpu")
    except ValueError:
        assert fail
    assert [one.name for one in tmp_path.iterdir()] == ["finished0"]


def drift_apart(steps: int, accumulation: int) -> dict[str, Any]:
    from notebook_accel.runtime.local_sgd import LocalSGD

    accelerator = Accelerator(gradient_accumulation_steps=accumulation)
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1, bias=False)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    x = torch.tensor([[accelerator.process_index + 1.0]])
    weights = []
    with LocalSGD(accelerator, model, local_sgd_steps=2, enabled=True) as local_sgd:
        for _ in range(steps):
            with accelerator.accumulate(model):
                accelerator.backward(model(x).sum())
                optimizer.step()
                optimizer.zero_grad()
                local_sgd.step()
            weights.append(accelerator.unwrap_model(model).weight.item())
    last = accelerator.unwrap_model(model).weight.item()
    accelerator.backward(model(x).sum())  # after the block gradients meet again
    grad = accelerator.unwrap_model(model).weight.grad.item()
    return {"weights": weights, "last": last, "grad": grad}


@pytest.mark.parametrize("accumulation", [1, 2])
def test_local_sgd_lets_ranks_drift_and_averages_them_now_and_then(accumulation: int) -> None:
    run = notebook_launcher(drift_apart, (5, accumulation), 2, device="cpu")
    torch.manual_seed(0)
    start = torch.nn.Linear(1, 1, bias=False).weight.item()
    mine, other = [start], [start]
    for step in range(1, 6):
        if step % accumulation == 0:
            mine.append(mine[-1] - 0.1)
            other.append(other[-1] - 0.2)
        else:
            mine.append(mine[-1])
            other.append(other[-1])
        if step % 2 == 0:
            mine[-1] = other[-1] = (mine[-1] + other[-1]) / 2
    assert run[0]["weights"] == pytest.approx(mine[1:])
    assert run[1]["weights"] == pytest.approx(other[1:])
    mean = (mine[-1] + other[-1]) / 2
    assert run[0]["last"] == run[1]["last"] == pytest.approx(mean)
    assert run[0]["grad"] == run[1]["grad"] != 0


def test_local_sgd_alone_or_switched_off_does_nothing() -> None:
    from notebook_accel.runtime.local_sgd import LocalSGD

    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    before = model.weight.clone()
    with LocalSGD(accelerator, model, local_sgd_steps=1) as local_sgd:
        local_sgd.step()
        assert not local_sgd.enabled
    assert torch.equal(model.weight, before)
    with pytest.raises(ConfigError) as error:
        LocalSGD(accelerator, model, local_sgd_steps=0)
    assert "local_sgd_steps=0 cannot be" in error.value.what
    assert "between two averages" in error.value.why
    assert "local_sgd_steps=8" in error.value.fix


def train_with_hooks() -> dict[str, Any]:
    from datetime import timedelta

    from notebook_accel import DistributedDataParallelKwargs, InitProcessGroupKwargs

    said: dict[str, Any] = {}
    long = InitProcessGroupKwargs(timeout=3600)  # CT06
    for hook, wrapper in [
        ("no", "no"),
        ("fp16", "no"),
        ("bf16", "no"),
        ("power_sgd", "no"),
        ("power_sgd", "bf16"),
        # batched_power_sgd: torch 2.13's own hook fails an assertion of its own.
    ]:
        ddp = DistributedDataParallelKwargs(
            comm_hook=hook,
            comm_wrapper=wrapper,
            comm_state_option={"start_powerSGD_iter": 2} if "power" in hook else {},
        )
        accelerator = Accelerator(kwargs_handlers=[ddp, long])
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        torch.manual_seed(accelerator.process_index)
        x = torch.randn(16, 8)
        losses = []
        for _ in range(6):
            loss = (model(x) - x[:, :1]).square().mean()
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            losses.append(accelerator.reduce(loss, "mean").item())
        flat = torch.cat([one.detach().flatten() for one in model.parameters()])
        every = accelerator.gather(flat.unsqueeze(0))
        said[f"{hook}+{wrapper}"] = [losses, bool(torch.equal(every[0], every[1])), flat.tolist()]
    group = torch.distributed.distributed_c10d._get_default_group()
    timeout = group._get_backend(torch.device("cpu")).options._timeout
    said["timeout"] = timeout == timedelta(hours=1)
    return said


def test_gradients_may_travel_smaller_and_ranks_stay_equal() -> None:
    first, _second = notebook_launcher(train_with_hooks, (), 2, device="cpu")
    assert first.pop("timeout")
    exact = torch.tensor(first["no+no"][2])
    for name, (losses, equal, weights) in first.items():
        assert equal, name
        assert losses[-1] < losses[0], name
        tolerance = 2e-2 if "bf16" in name else 2e-3
        if "power" not in name:
            assert torch.allclose(torch.tensor(weights), exact, atol=tolerance), name
    assert first["fp16+no"][2] != first["bf16+no"][2] != first["no+no"][2]
    assert first["power_sgd+no"][2] != first["no+no"][2]


def schedule(in_updates: bool, accumulation: int) -> list[float]:
    accelerator = Accelerator(
        gradient_accumulation_steps=accumulation, schedule_in_updates=in_updates
    )
    model = torch.nn.Linear(1, 1)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(inner, lambda step: 0.5**step)
    model, optimizer, scheduler = accelerator.prepare(model, inner, scheduler)
    rates = []
    for _ in range(4):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(1, 1)).sum())
            optimizer.step()
            scheduler.step()
        if accelerator.sync_gradients:
            rates.append(inner.param_groups[0]["lr"])
    return rates


def test_a_schedule_counted_in_updates_is_the_same_on_any_number_of_ranks() -> None:
    one = notebook_launcher(schedule, (True, 2), 1, device="cpu")[0]
    two = notebook_launcher(schedule, (True, 1), 2, device="cpu")[0]
    assert one == [0.5, 0.25]
    assert two == [0.5, 0.25, 0.125, 0.0625]
    by_rank = notebook_launcher(schedule, (False, 1), 2, device="cpu")[0]
    assert by_rank == [0.25, 0.0625, 0.015625, 0.00390625]


def test_a_wish_for_ddp_prints_what_it_asks_for() -> None:
    assert repr(DDP(comm_hook="bf16")) == 'DDP(comm_hook="bf16")'
